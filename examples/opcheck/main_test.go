package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
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
		{"op":"relu","id":"huge","dtype":"float32","args":{},"inputs":[{"dtype":"float32","shape":[1125899906842624],"strides":[0],"offset":0,"storage":[1]}]},
		{"op":"mul","id":"huge","dtype":"float32","args":{},"inputs":[{"dtype":"float32","shape":[2097152,1],"strides":[0,0],"offset":0,"storage":[1]},{"dtype":"float32","shape":[1,2097152],"strides":[0,0],"offset":0,"storage":[1]}]},
		{"op":"relu","id":"odd","dtype":"float32","args":{},"outputs":"?","grad_inputs":1,"inputs":[{"dtype":"float32","shape":[],"strides":[],"offset":0,"storage":[1]}]},
		{"name":"g","dtype":"float32","blocks":[[1,[2]]]}]`)
	want := `{"grad_inputs":[{"data":[2,"-Infinity"],"shape":[2]},null],"outputs":[{"data":[2.5,"NaN"],"shape":[2]}]}`
	if got, _ := json.Marshal(list[0]["got"]); string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if more, _ := json.Marshal(list[0]["more"]); string(more) != "[1,2]" {
		t.Errorf("an unknown field came back as %s", more)
	}
	for i, word := range map[int]string{1: "broadcast", 2: "conjure", 4: "memory", 5: "shape", 6: "memory", 7: "memory", 9: "ragged"} {
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
			if keys, want := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(c["want"].(map[string]any))); !slices.Equal(keys, want) {
				t.Errorf("%s %v: %v, want %v", path, c["name"], keys, want)
			}
		}
	}
	const rest = `"dtype":"float32","proj_weight":[[1,1]],"rmsnorm_gamma":[[1,2]],"scale":1,"rmsnorm_eps":1e-6,"enable_rmsnorm":true`
	for name, c := range map[string]struct{ fields, want string }{
		"no batch":     {`"blocks":[[]],"partial_block":[],"grad_h":[]`, `{"alpha_cache":[],"grad_blocks":[[]],"grad_partial_block":[],"grad_proj_weight":[0,0],"grad_rmsnorm_gamma":[0,0],"output":[],"rms_cache":[]}`},
		"no time":      {`"blocks":[[[],[]]],"partial_block":null,"grad_h":[[],[]]`, `{"alpha_cache":[[],[]],"grad_blocks":[[[],[]]],"grad_partial_block":null,"grad_proj_weight":[0,0],"grad_rmsnorm_gamma":[0,0],"output":[[],[]],"rms_cache":[[],[]]}`},
		"forward":      {`"blocks":[[[[3,4]]]],"partial_block":null,"grad_h":null`, `{"alpha_cache":[[[1]]],"output":[[[3,4]]],"rms_cache":[[[[3.535534143447876]]]]}`},
		"odd want":     {`"blocks":[[[[3,4]]]],"partial_block":null,"grad_h":null,"want":7`, `{"alpha_cache":[[[1]]],"output":[[[3,4]]],"rms_cache":[[[[3.535534143447876]]]]}`},
		"row weights":  {`"blocks":[[[[3,4]]]],"partial_block":null,"grad_h":[[[1,2]]]`, `{"alpha_cache":[[[1]]],"grad_blocks":[[[[1,2]]]],"grad_partial_block":null,"grad_proj_weight":[0,0],"grad_rmsnorm_gamma":[0,0],"output":[[[3,4]]],"rms_cache":[[[[3.535534143447876]]]]}`},
		"wrong grad_h": {`"blocks":[[[[3,4]]]],"partial_block":null,"grad_h":[[[1,2,3]]]`, `grad_h`},
	} {
		for _, path := range []string{"fused", "decomposed"} {
			list, _ := check(t, 0, "[{"+c.fields+","+rest+"}]", "-path", path)
			if e, _ := list[0]["error"].(string); e != "" || c.want == "grad_h" {
				if !strings.Contains(e, c.want) || strings.Contains(e, ".go:") {
					t.Errorf("%s %s: error %q", name, path, e)
				}
				continue
			}
			if got, _ := json.Marshal(list[0]["got"]); string(got) != c.want {
				t.Errorf("%s %s: got %s, want %s", name, path, got, c.want)
			}
		}
	}
	list, _ := check(t, 0, `[{"name":"refused","dtype":"float32","blocks":[],"proj_weight":[1],"scale":1,"rmsnorm_eps":1e-6,"enable_rmsnorm":true,"rmsnorm_gamma":[1],"partial_block":null,"grad_h":null}]`)
	if e, _ := list[0]["error"].(string); !strings.Contains(e, "blocks") {
		t.Error(list[0])
	}
}
