package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func check(t *testing.T, status int, input string, args ...string) (list []map[string]any, errs string) {
	t.Helper()
	var out, e bytes.Buffer
	if got := run(args, strings.NewReader(input), &out, &e); got != status {
		t.Fatalf("exit status %d, want %d: %s", got, status, e.String())
	}
	if status == 0 {
		if err := json.Unmarshal(out.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
	} else if out.Len() > 0 {
		t.Errorf("output beside the error: %s", out.String())
	}
	return list, e.String()
}

func TestWrongArgumentsAndFiles(t *testing.T) {
	for _, input := range []string{"", "{", "null", "{}", "[1]", "[null]", `[{"op":1}]`, `[{"name":"x"}]`, `[] x`} {
		if _, errs := check(t, 2, input); !strings.HasPrefix(errs, "opcheck: ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: %q", input, errs)
		}
	}
	for _, args := range [][]string{{"-path", "slow"}, {"-device", "abacus"}, {"-device", "ascend:0"}, {"x"}, {"-nosuch"}} {
		if _, errs := check(t, 2, "[]", args...); !strings.HasPrefix(errs, "opcheck: ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %q", args, errs)
		}
	}
	if list, _ := check(t, 0, "[]"); len(list) != 0 {
		t.Error(list)
	}
}

func TestOps(t *testing.T) {
	list, _ := check(t, 0, `[
		{"op":"add","id":"a","dtype":"float32","args":{},"more":[1,2],"inputs":[{"dtype":"float32","shape":[2],"strides":[2],"offset":1,"storage":[9,1,9,"NaN"]},1.5],
		 "grad_outputs":[{"shape":[2],"data":[2,"-Infinity"]}]},
		{"op":"add","id":"b","dtype":"float64","args":{},"inputs":[{"dtype":"float64","shape":[2],"strides":[1],"offset":0,"storage":[1,2]},{"dtype":"float64","shape":[3],"strides":[1],"offset":0,"storage":[1,2,3]}]},
		{"op":"conjure","id":"c","dtype":"float64","args":{},"inputs":[]},
		{"op":"clamp","id":"d","dtype":"float16","args":{"min":-0.75,"max":1.25},"inputs":[{"dtype":"float16","shape":[3],"strides":[1],"offset":0,"storage":[-2,0.5,2]}]},
		{"op":"relu","id":"e","dtype":"float32","args":{},"inputs":[{"dtype":"float32","shape":[4],"strides":[3],"offset":0,"storage":[1,2]}]},
		{"op":"relu","id":"f","inputs":[{"shape":"x"}]},
		{"name":"g","dtype":"float32","blocks":[[1,[2]]]}]`)
	want := `{"grad_inputs":[{"data":[2,"-Infinity"],"shape":[2]},null],"outputs":[{"data":[2.5,"NaN"],"shape":[2]}]}`
	if got, _ := json.Marshal(list[0]["got"]); string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if more, _ := json.Marshal(list[0]["more"]); string(more) != "[1,2]" {
		t.Errorf("an unknown field came back as %s", more)
	}
	for i, word := range map[int]string{1: "broadcast", 2: "conjure", 4: "memory", 5: "shape", 6: "ragged"} {
		if e, _ := list[i]["error"].(string); !strings.Contains(e, word) || list[i]["got"] != nil {
			t.Errorf("case %d: error %q, want one with %q", i, e, word)
		}
	}
	if got, _ := json.Marshal(list[3]["got"]); string(got) != `{"outputs":[{"data":[-0.75,0.5,1.25],"shape":[3]}]}` {
		t.Errorf("clamp gave %s", got)
	}
}

// The whole file of cases comes back with a result in each case, on both paths.
func TestBlockAttnRes(t *testing.T) {
	input, err := os.ReadFile("../../tests/testdata/blockattnres.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"fused", "decomposed"} {
		list, _ := check(t, 0, string(input), "-path", path)
		if len(list) != 30 {
			t.Fatalf("%d cases, want 30", len(list))
		}
		for _, c := range list {
			got, ok := c["got"].(map[string]any)
			if !ok {
				t.Fatalf("%s %v: %v", path, c["name"], c["error"])
			}
			for k := range c["want"].(map[string]any) {
				if _, ok := got[k]; !ok {
					t.Errorf("%s %v: no %s", path, c["name"], k)
				}
			}
		}
	}
	list, _ := check(t, 0, `[{"name":"refused","dtype":"float32","blocks":[],"proj_weight":[1],"scale":1,"rmsnorm_eps":1e-6,"enable_rmsnorm":true,"rmsnorm_gamma":[1],"partial_block":null,"grad_h":null}]`)
	if e, _ := list[0]["error"].(string); !strings.Contains(e, "blocks") {
		t.Error(list[0])
	}
}
