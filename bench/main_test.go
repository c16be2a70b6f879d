package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run prints its figures, writes one object a line, compares with a file of
// peers and draws a picture.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	figures, peers, picture := filepath.Join(dir, "figures.json"), filepath.Join(dir, "peers.json"), filepath.Join(dir, "p.png")
	if err := os.WriteFile(peers, []byte(`{"name":"matmul/fp32/127x129x131","value":1e-3,"unit":"GFLOP/s","threads":2,"peer":"a snail"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(context.Background(), []string{"-only", "bandwidth|peak/fp32|matmul/fp32/127", "-repeat", "1", "-threads", "2", "-json", figures, "-peers", peers, "-picture", picture}, &out)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(figures)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]figure{}
	for line := range strings.Lines(string(b)) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		seen[f.Name] = f
	}
	for name, threads := range map[string]int{"read_bandwidth": 2, "copy_bandwidth": 2, "peak/fp32": 2, "matmul/fp32/127x129x131": 2, "matmul/fp32/127x129x131/1thread": 1} {
		if f := seen[name]; !(f.Value > 0) || f.Unit == "" || f.Threads != threads {
			t.Errorf("%s is %+v", name, f)
		}
	}
	if f := seen["matmul/fp32/127x129x131"]; !(f.Limit > 0 && f.Value < 2*f.Limit) {
		t.Errorf("a product at %v of %v GFLOP/s", f.Value, f.Limit)
	}
	if len(seen) != 5 {
		t.Errorf("%d figures, want 5", len(seen))
	}
	if !strings.Contains(out.String(), "x of a snail (0.001)") {
		t.Errorf("no ratio to the peer:\n%s", &out)
	}
	if info, err := os.Stat(picture); err != nil || info.Size() < 1000 {
		t.Errorf("the picture: %v", err)
	}
}

func TestRatios(t *testing.T) {
	for _, c := range []struct {
		f    figure
		peer float64
		want float64
	}{{figure{Value: 2, Unit: "ms"}, 6, 3}, {figure{Value: 6, Unit: "GFLOP/s"}, 2, 3}, {figure{Value: 100, Unit: "count"}, 50, 0.5}} {
		if got := c.f.of(c.peer); got != c.want {
			t.Errorf("%+v beside %v: %v, want %v", c.f, c.peer, got, c.want)
		}
	}
	if got := middle([]float64{5, 1, 4, 2}); got != 3 {
		t.Errorf("the median is %v", got)
	}
}

// Wrong calls are refused before anything is measured.
func TestWrongFlags(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{\"name\":\"x\",\"value\":1}\n{\"value\":"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-only", "("}, {"-threads", "0"}, {"-repeat", "0"}, {"-peers", "/does/not/exist"}, {"-peers", bad}, {"-json", "/does/not/exist/x"}, {"x"}, {"-nonsense"},
	} {
		var out bytes.Buffer
		if err := run(context.Background(), args, &out); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

// Parts of a step are measured, and the peers measure the same ones.
func TestParts(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), []string{"-only", "part/(layer_norm|embedding|adamw)/", "-repeat", "1", "-picture", ""}, &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"part/layer_norm/bf16", "part/layer_norm/fp32", "part/embedding/bf16", "part/embedding/fp32", "part/adamw/fp32"} {
		if !strings.Contains(out.String(), name+" ") {
			t.Errorf("no %s in\n%s", name, &out)
		}
	}
	peers, err := os.ReadFile("peers.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range partsOf(nil) {
		if !strings.Contains(string(peers), `"`+p.name+`": ([`) {
			t.Errorf("peers.py has no part %q", p.name)
		}
	}
}
