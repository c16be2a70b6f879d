package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sample is a text that is easy to learn.
func sample(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", n)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func tiny(data, out string, more ...string) []string {
	return append([]string{"-data", data, "-out", out, "-layers", "1", "-dim", "16", "-heads", "2", "-seq", "16", "-batch", "4",
		"-steps", "12", "-warmup", "2", "-eval-every", "6", "-sample", "8", "-threads", "2"}, more...)
}

// metrics reads a run folder and checks that it is complete.
func metrics(t *testing.T, dir string) []point {
	t.Helper()
	var c map[string]any
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"loss.png", "alpha.png"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ps []point
	for in := bufio.NewScanner(f); in.Scan(); {
		var p point
		if err := json.Unmarshal(in.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	return ps
}

func TestRun(t *testing.T) {
	data := sample(t, 200)
	for _, c := range [][]string{
		{"-residual", "prenorm"}, {"-residual", "block"}, {"-residual", "full"}, {"-residual", "block", "-block-size", "3", "-accum", "2"},
		{"-dtype", "bfloat16"}, {"-dtype", "float16"}, {"-dtype", "float64"},
	} {
		t.Run(strings.Join(c, " "), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			var out, errs bytes.Buffer
			if status := run(context.Background(), tiny(data, dir, c...), &out, &errs); status != 0 {
				t.Fatalf("exit status %d: %s", status, errs.String())
			}
			ps := metrics(t, dir)
			if len(ps) != 12 {
				t.Fatalf("%d steps in metrics.jsonl, want 12", len(ps))
			}
			first, last := ps[0].Loss, ps[11].Loss
			if math.Abs(first-math.Log(256)) > 0.5 || last > first-0.2 {
				t.Errorf("loss went from %v to %v", first, last)
			}
			if ps[5].Validation == nil || ps[11].Validation == nil {
				t.Error("no validation loss")
			}
			for _, words := range []string{"byte frequencies alone give", "tokens/s", "left", "a sample:", dir} {
				if !strings.Contains(out.String(), words) {
					t.Errorf("no %q in the output:\n%s", words, out.String())
				}
			}
		})
	}
}

// The same seed gives the same losses to the bit, for any number of threads.
func TestSameSeedSameRun(t *testing.T) {
	data := sample(t, 200)
	var want []float64
	for _, threads := range []string{"1", "3"} {
		dir := t.TempDir()
		if status := run(context.Background(), tiny(data, dir, "-threads", threads), &bytes.Buffer{}, os.Stderr); status != 0 {
			t.Fatal(status)
		}
		var got []float64
		for _, p := range metrics(t, dir) {
			got = append(got, p.Loss, *pointer(p.Validation))
		}
		if want == nil {
			want = got
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("loss %d is %v with %s threads, %v with 1", i, got[i], threads, want[i])
			}
		}
	}
}

func pointer(p *float64) *float64 {
	if p == nil {
		p = new(float64)
	}
	return p
}

func TestWrongArguments(t *testing.T) {
	data := sample(t, 100)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	list := [][]string{
		{"-data", filepath.Join(t.TempDir(), "missing")}, {"-data", empty}, {"-data", short}, {"-data", t.TempDir()},
		{"-dim", "15"}, {"-dim", "6", "-heads", "2"}, {"-dim", "0"}, {"-heads", "3"}, {"-layers", "0"}, {"-layers", "80", "-residual", "full"},
		{"-seq", "0"}, {"-seq", "100000"}, {"-batch", "-1"}, {"-steps", "0"}, {"-lr", "0"}, {"-lr", "NaN"}, {"-lr", "x"}, {"-clip", "-1"},
		{"-residual", "sum"}, {"-block-size", "0"}, {"-dtype", "int64"}, {"-dtype", "f8"}, {"-device", "gpu9"}, {"-device", "ascend:0"}, {"-threads", "-1"},
		{"-nosuch"}, {"stray"}, {"-out", empty},
	}
	if machineMemory() > 0 { // where it is not known, sizes beyond it are not refused
		list = append(list, []string{"-batch", "100000000000"}, []string{"-dim", "4000000"}, []string{"-layers", "4000000000000"}, []string{"-batch", "9223372036854775807"})
	}
	for _, c := range list {
		dir := filepath.Join(t.TempDir(), "run")
		var out, errs bytes.Buffer
		status := run(context.Background(), tiny(data, dir, c...), &out, &errs)
		if status != 2 {
			t.Errorf("%v: exit status %d, want 2: %s", c, status, errs.String())
		}
		if out.Len() > 0 {
			t.Errorf("%v: output %q", c, out.String())
		}
		if msg := errs.String(); !strings.HasPrefix(msg, "train_toy: ") || strings.Count(msg, "\n") != 1 {
			t.Errorf("%v: %q", c, msg)
		}
		if _, err := os.Stat(filepath.Join(dir, "metrics.jsonl")); err == nil {
			t.Errorf("%v: work was done", c)
		}
	}
}

// An interrupt ends the step and leaves a complete run folder.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	var out, errs bytes.Buffer
	time.AfterFunc(300*time.Millisecond, cancel)
	if status := run(ctx, tiny(sample(t, 200), dir, "-steps", "1000000", "-eval-every", "1000000"), &out, &errs); status != 0 {
		t.Fatalf("exit status %d: %s", status, errs.String())
	}
	if ps := metrics(t, dir); len(ps) == 0 || len(ps) == 1000000 {
		t.Errorf("%d steps", len(ps))
	}
	if !strings.Contains(out.String(), "stopped after") || !strings.Contains(out.String(), "validation loss") {
		t.Error(out.String())
	}
}

func TestText(t *testing.T) {
	text, from, err := readText("")
	if err != nil || len(text) < 1<<16 {
		t.Errorf("the default text: %d bytes from %s, %v", len(text), from, err)
	}
	t.Setenv("PATH", "")
	if text, from, err = readText(""); err != nil || len(text) < 1<<14 || !strings.Contains(from, "own source") {
		t.Errorf("without Go: %d bytes from %s, %v", len(text), from, err)
	}
	if h := entropy([]byte("abababab")); math.Abs(h-math.Ln2) > 1e-15 {
		t.Errorf("entropy of two bytes %v", h)
	}
	train, valid, err := split(bytes.Repeat([]byte("abc"), 1000), 16)
	if err != nil || len(train)+len(valid) != 3000 || len(valid) < 200 || len(valid) > 400 {
		t.Errorf("%d and %d, %v", len(train), len(valid), err)
	}
}
