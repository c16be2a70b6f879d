package cascade

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/tensor"
)

var small = Case{B: 2, T: 19, N: 3, D: 24, DType: tensor.BFloat16, Scale: -0.7, RMSNorm: true, Partial: true, Seed: 5}

func run(t *testing.T, c Case, dev device.Device) []precision.Result {
	t.Helper()
	r, err := c.Run(context.Background(), dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Slices give the rows' results to the bit, and the weights' up to the rounding of their sums.
func TestSlices(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for _, change := range []func(c *Case){
		func(c *Case) {},
		func(c *Case) { c.DType = tensor.Float16; c.Partial = false },
		func(c *Case) { c.DType = tensor.Float32; c.RMSNorm = false },
		func(c *Case) { c.DType = tensor.Float64; c.Scale = 1; c.Ones = true },
		func(c *Case) { c.Inputs = &precision.L1 },
	} {
		c := small
		change(&c)
		whole := run(t, c, dev)
		c.Memory = perElement * c.sources() * c.D * 7 // seven tokens at once
		if c.Slices() != 6 {
			t.Fatalf("%d slices, want 6", c.Slices())
		}
		var told []int
		sliced, err := c.Run(context.Background(), dev, func(done, all int) { told = append(told, done, all) })
		if err != nil {
			t.Fatal(err)
		}
		if len(told) != 12 || told[10] != 6 || told[11] != 6 {
			t.Errorf("progress was %v", told)
		}
		_, weights := c.names()
		for i, w := range whole {
			s := sliced[i]
			if s.Output != w.Output || s.Elements != w.Elements {
				t.Fatalf("%v: %s of %d, want %s of %d", c, s.Output, s.Elements, w.Output, w.Elements)
			}
			if i < len(whole)-weights && s != w {
				t.Errorf("%v: %s in slices is\n%+v, at once\n%+v", c, s.Output, s, w)
			}
			if !s.Passed(precision.L2) || !w.Passed(precision.L2) {
				t.Errorf("%v: %s%s", c, s.Failure(precision.L2), w.Failure(precision.L2))
			}
		}
	}
}

// The gradients of the weights are the sums over all slices.
func TestSlicesAddUp(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	c := small
	c.D = 1 // one element, which is then the worst
	c.DType = tensor.Float64
	whole := run(t, c, dev)
	c.Memory = perElement * c.sources() * 7
	for i, s := range run(t, c, dev) {
		a, b := whole[i].Worst, s.Worst
		if a.Index < 0 {
			a, b = whole[i].WorstSmall, s.WorstSmall
		}
		if strings.HasPrefix(s.Output, "grad_proj") || strings.HasPrefix(s.Output, "grad_rms") {
			for _, x := range [][2]float64{{a.Kernel, b.Kernel}, {a.Benchmark, b.Benchmark}, {a.Golden, b.Golden}} {
				if math.Abs(x[0]-x[1]) > 1e-12*math.Abs(x[0]) {
					t.Errorf("%s: at once %v, in slices %v", s.Output, a, b)
				}
			}
		}
	}
}

// spoiled is a device whose operator is wrong in one element of one result.
type spoiled struct {
	*cpu.Device
	output string
}

func spoil(x *tensor.Tensor) error {
	v, err := x.Float64s()
	if err != nil {
		return err
	}
	i := 0 // the largest: the standard forgives two small ones
	for j := range v {
		if math.Abs(v[j]) > math.Abs(v[i]) {
			i = j
		}
	}
	v[i] *= 1.5
	return x.SetFloat64s(v)
}

func (d spoiled) BlockAttnResForward(ctx context.Context, a *device.BlockAttnResArgs, out *device.BlockAttnResOut) error {
	err := d.Device.BlockAttnResForward(ctx, a, out)
	of := map[string]*tensor.Tensor{"output": out.H, "rms_cache": out.RMS, "alpha_cache": out.Alpha}[d.output]
	if err != nil || of == nil {
		return err
	}
	return spoil(of)
}

func (d spoiled) BlockAttnResBackward(ctx context.Context, a *device.BlockAttnResArgs, saved *device.BlockAttnResOut, gradH *tensor.Tensor, g *device.BlockAttnResGrads) error {
	err := d.Device.BlockAttnResBackward(ctx, a, saved, gradH, g)
	of := map[string]*tensor.Tensor{"grad_blocks[0]": g.Blocks[0], "grad_blocks[2]": g.Blocks[2], "grad_partial_block": g.PartialBlock, "grad_proj_weight": g.ProjWeight, "grad_rmsnorm_gamma": g.RMSNormGamma}[d.output]
	if err != nil || of == nil {
		return err
	}
	return spoil(of)
}

// One wrong element of any output fails that output, with its three values, at
// once and in slices, and Compatible sees what the published test sees.
func TestSpoiled(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for _, output := range []string{"output", "rms_cache", "alpha_cache", "grad_blocks[0]", "grad_blocks[2]", "grad_partial_block", "grad_proj_weight", "grad_rmsnorm_gamma"} {
		for _, memory := range []int{0, perElement * small.sources() * small.D * 7} {
			c := small
			c.Memory = memory
			found := false
			for _, r := range run(t, c, spoiled{dev, output}) {
				if r.Output == output {
					found = true
					if f := r.Failure(precision.L2); !strings.Contains(f, output) || !strings.Contains(f, "golden") {
						t.Errorf("%s is wrong and the report is %q", output, f)
					}
				}
			}
			if !found {
				t.Errorf("no result for %s", output)
			}
		}
		c := small
		c.Compatible = true
		failed := ""
		for _, r := range run(t, c, spoiled{dev, output}) {
			if r.Output == output {
				failed = r.Failure(precision.L2)
			}
		}
		if blind := output == "grad_blocks[2]"; blind != (failed == "") {
			t.Errorf("compatible: %s is wrong and the report is %q", output, failed)
		}
	}
}

func TestRefusals(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for name, change := range map[string]func(c *Case){
		"b": func(c *Case) { c.B = -1 }, "t": func(c *Case) { c.T = 1 << 40 }, "n": func(c *Case) { c.N = 128 }, "d": func(c *Case) { c.D = 0 },
		"dtype": func(c *Case) { c.DType = tensor.Int32 }, "scale": func(c *Case) { c.Scale = math.NaN() },
		"compatible": func(c *Case) { c.Compatible, c.Partial = true, false },
	} {
		c := small
		change(&c)
		var arg *tensor.ArgError
		if _, err := c.Run(context.Background(), dev, nil); !errors.As(err, &arg) || arg.Arg != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := small.Run(ctx, dev, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := small.Run(context.Background(), plain{dev}, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device without the kernel: %v", err)
	}
}

// plain is a device without fused kernels.
type plain struct{ device.Device }

// No tokens at all is a case too.
func TestEmpty(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	c := small
	c.T = 0
	for _, r := range run(t, c, dev) {
		if !r.Passed(precision.L2) {
			t.Error(r.Failure(precision.L2))
		}
	}
}
