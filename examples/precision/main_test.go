package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/tensor"
)

func call(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(context.Background(), args, &o, &e)
	return status, o.String(), e.String()
}

var tiny = []string{"-b", "1", "-t", "9", "-n", "2", "-d", "33"}

func TestPasses(t *testing.T) {
	for _, more := range [][]string{
		{}, {"-dtype", "fp16", "-gamma", "random", "-scale", "-0.7"}, {"-dtype", "fp32", "-partial=false"}, {"-dtype", "fp64", "-rmsnorm=false"},
		{"-level", "L0", "-inputs", "level"}, {"-memory", "0.00001"}, {"-compatible"}, {"-seeds", "0", "-seed", "3"},
	} {
		status, out, errs := call(append(tiny, more...)...)
		if status != 0 || errs != "" || !strings.HasSuffix(out, "\nPASS\n") {
			t.Errorf("%v: status %d\n%s%s", more, status, out, errs)
		}
		for _, name := range []string{"output", "alpha_cache", "grad_blocks[0]", "grad_proj_weight", "MARE", "MERE", "RMSE"} {
			if !strings.Contains(out, name) {
				t.Errorf("%v: no %s in\n%s", more, name, out)
			}
		}
		if compatible := len(more) == 1 && more[0] == "-compatible"; compatible == strings.Contains(out, "rounded float64 answer") {
			t.Errorf("%v: the count of exact numbers in\n%s", more, out)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"-n 0": "-n is 0", "-n 128": "-n is 128", "-d -1": "-d is -1", "-b x": "parse error", "-dtype int8": "-dtype is", "-gamma two": "-gamma is",
		"-level L3": "-level is", "-inputs odd": "-inputs is", "-seeds 5": "-seeds is 5", "-memory -1": "-memory is", "-scale NaN": "-scale is", "-device tpu": "device",
		"-device ascend:0": "no such backend", "-compatible -partial=false": "-compatible is", "-sweep -cases 0": "-cases is 0", "-sweep -elements 5": "-elements 5",
		"more": "no flag", "-odd": "not defined",
	} {
		status, out, errs := call(strings.Fields(args)...)
		if status != 2 || out != "" || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, %q, %q", args, status, out, errs)
		}
	}
	if status, out, errs := call("-help"); status != 0 || errs != "" || !strings.Contains(out, "-sweep") {
		t.Errorf("-help: status %d, %s%s", status, out, errs)
	}
}

// wrong is a device whose forward adds a little to every output.
type wrong struct {
	*cpu.Device
	by float64
}

func (d wrong) BlockAttnResForward(ctx context.Context, a *device.BlockAttnResArgs, out *device.BlockAttnResOut) error {
	if err := d.Device.BlockAttnResForward(ctx, a, out); err != nil {
		return err
	}
	v, err := out.H.Float64s()
	if err != nil {
		return err
	}
	for i := range v {
		v[i] += d.by
	}
	return out.H.SetFloat64s(v)
}

func settingsOf(t *testing.T, args ...string) settings {
	t.Helper()
	s, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s.quiet = true
	return s
}

// A wrong kernel fails, at once or after new seeds, with exit status 1; what is
// only unlucky does not.
func TestFails(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for _, seeds := range []string{"0", "200"} {
		var out bytes.Buffer
		s := settingsOf(t, append(tiny, "-t", "3", "-seeds", seeds)...)
		status := s.run(context.Background(), wrong{dev, 0.1}, &out, io.Discard)
		if status != 1 || !strings.HasSuffix(out.String(), "\nFAILED\n") || !strings.Contains(out.String(), "output:") || (seeds == "200") != strings.Contains(out.String(), "under 200 new seeds") {
			t.Errorf("-seeds %s: status %d\n%s", seeds, status, out.String())
		}
		out.Reset()
		s.json = true
		if status := s.run(context.Background(), wrong{dev, 0.1}, &out, io.Discard); status != 1 {
			t.Errorf("status %d with -json", status)
		}
		var o written
		if err := json.Unmarshal(out.Bytes(), &o); err != nil || o.Passed || len(o.Results) != 8 || (seeds == "200") != (o.Recheck["output"]["passed"] == false) {
			t.Errorf("%v, %+v", err, o)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var errs bytes.Buffer
	if status := settingsOf(t, tiny...).run(ctx, dev, io.Discard, &errs); status != 1 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("interrupted: status %d, %s", status, errs.String())
	}
}

// written is what a reader of the JSON sees.
type written struct {
	Case    string
	Level   string
	Passed  bool
	Ulps    precision.Histogram
	Results []map[string]any
	Recheck map[string]map[string]any
}

func TestJSON(t *testing.T) {
	status, out, errs := call(append(tiny, "-json")...)
	var o written
	if err := json.Unmarshal([]byte(out), &o); err != nil || status != 0 || errs != "" {
		t.Fatalf("status %d, %v, %s", status, err, errs)
	}
	if !o.Passed || o.Level != "L2" || !strings.HasPrefix(o.Case, "b1_t9_n2_d33") || len(o.Results) != 8 || o.Ulps.All() != 9*33*4+66 {
		t.Errorf("%+v", o)
	}
}

// The sweep draws cases of the specification, half of each dtype, the same for
// the same seed.
func TestSweep(t *testing.T) {
	s := settingsOf(t, "-sweep", "-elements", "2000000")
	widths, sizes := map[int]bool{}, map[int]bool{}
	for i := range 400 {
		c := s.specification(i)
		if again := s.specification(i); again != c {
			t.Fatalf("%v, then %v", c, again)
		}
		if err := c.Check(); err != nil || c.N > 127 || c.B < 1 || c.B > 8 || c.T < 1 || c.T > 32768 || c.D < 1536 || c.D > 6144 {
			t.Fatalf("%+v: %v", c, err)
		}
		if c.B*c.T*(c.N+1)*c.D > 2000000+c.B*c.T*c.D {
			t.Fatalf("%+v is too large", c)
		}
		if want := []tensor.DType{tensor.BFloat16, tensor.Float16}[i%2]; c.DType != want {
			t.Fatalf("case %d is %v", i, c.DType)
		}
		widths[c.D], sizes[c.N] = true, true
	}
	if len(widths) != 6 || len(sizes) < 40 {
		t.Errorf("%d widths, %d values of N", len(widths), len(sizes))
	}
	status, out, errs := call("-sweep", "-cases", "4", "-elements", "50000")
	if status != 0 || errs != "" || strings.Count(out, "PASS  b") != 4 || !strings.Contains(out, "4 of 4 cases pass at L2") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	status, out, _ = call("-sweep", "-cases", "2", "-elements", "50000", "-json")
	var list []written
	if err := json.Unmarshal([]byte(out), &list); err != nil || status != 0 || len(list) != 2 {
		t.Errorf("status %d, %v, %d", status, err, len(list))
	}
}
