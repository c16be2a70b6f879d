package tests

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cases"
	"github.com/lamina-go/lamina/tensor"
)

func readCases(t *testing.T, path string) []*cases.Case {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := cases.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// ulp is the distance between neighbours in dtype d at x.
func ulp(d tensor.DType, x float64) float64 {
	bits, least := 24, -149
	switch d {
	case tensor.Float64:
		bits, least = 53, -1074
	case tensor.Float16:
		bits, least = 11, -24
	case tensor.BFloat16:
		bits, least = 8, -133
	}
	if x == 0 {
		return math.Ldexp(1, least)
	}
	_, e := math.Frexp(x)
	return math.Ldexp(1, max(e-bits, least))
}

// near compares results with float64 answers: 1e-10 or 1e-5 of the largest value
// in sight, and for 16 bits one ulp of the rounded answer beside that.
func near(d tensor.DType, got, want []float64, scale float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	tolerance := 1e-5
	if d == tensor.Float64 {
		tolerance = 1e-10
	}
	for i, g := range got {
		w := tensor.Round(d, want[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		allowed := tolerance * scale
		if d.IsHalf() {
			allowed += ulp(d, w)
		}
		if !(math.Abs(g-w) <= allowed) {
			return fmt.Errorf("element %d is %v, want %v (+- %.3g)", i, g, w, allowed)
		}
	}
	return nil
}

func largest(lists ...[]float64) float64 {
	m := 1e-300
	for _, l := range lists {
		for _, x := range l {
			if !math.IsInf(x, 0) {
				m = math.Max(m, math.Abs(x))
			}
		}
	}
	return m
}

func floats(ns []cases.Number) []float64 {
	out := make([]float64, len(ns))
	for i, n := range ns {
		out[i] = float64(n)
	}
	return out
}

// plain hides a device's fused kernels, so that operations take their composed path.
type plain struct{ device.Device }

func TestSmallOps(t *testing.T) {
	list := readCases(t, "testdata/ops.json")
	if len(list) != 828 {
		t.Fatalf("%d cases, want 828", len(list))
	}
	dev := cpu.New()
	defer dev.Close()
	t.Run("fused", func(t *testing.T) { smallOps(t, dev, list) })
	t.Run("composed", func(t *testing.T) { smallOps(t, plain{dev}, list) })
}

func smallOps(t *testing.T, dev device.Device, list []*cases.Case) {
	for _, c := range list {
		t.Run(c.Name(), func(t *testing.T) {
			got := c.Run(dev, "fused")
			s := c.Small
			if err := errors.Join(s.Refused.Err, s.Outputs.Err, s.GradInputs.Err); err != nil {
				t.Fatal(err)
			}
			if s.Refused.Value {
				if got.Err == nil {
					t.Fatal("not refused")
				}
				return
			}
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			r := got.Value.(*cases.SmallResult)
			d, err := tensor.ParseDType(s.DType)
			if err != nil {
				t.Fatal(err)
			}
			var seen [][]float64
			for _, in := range s.Inputs {
				seen = append(seen, floats(in.Storage))
			}
			for _, o := range append(s.Outputs.Value, s.GradOutputs...) {
				seen = append(seen, floats(o.Data))
			}
			for _, g := range s.GradInputs.Value {
				seen = append(seen, floats(g.Data))
			}
			scale := largest(seen...)
			out := d
			if s.Op == "cast" {
				if out, err = tensor.ParseDType(s.Args.DType); err != nil {
					t.Fatal(err)
				}
				scale = 0
			}
			if !tensor.Shape(r.Outputs[0].Shape).Equal(s.Outputs.Value[0].Shape) {
				t.Errorf("shape %v, want %v", r.Outputs[0].Shape, s.Outputs.Value[0].Shape)
			}
			if s.Op == "cast" {
				for i, g := range r.Outputs[0].Data {
					if w := tensor.Round(out, float64(s.Outputs.Value[0].Data[i])); math.Float64bits(float64(g)) != math.Float64bits(w) && !(math.IsNaN(w) && math.IsNaN(float64(g))) {
						t.Errorf("element %d is %v, want %v", i, g, w)
					}
				}
			} else if err := near(out, floats(r.Outputs[0].Data), floats(s.Outputs.Value[0].Data), scale); err != nil {
				t.Error("output:", err)
			}
			for i, want := range s.GradInputs.Value {
				if want.Shape == nil {
					continue
				}
				if i >= len(r.GradInputs) || r.GradInputs[i] == nil {
					t.Errorf("no gradient of input %d", i)
					continue
				}
				if !tensor.Shape(r.GradInputs[i].Shape).Equal(want.Shape) {
					t.Errorf("gradient %d has shape %v, want %v", i, r.GradInputs[i].Shape, want.Shape)
				}
				if err := near(d, floats(r.GradInputs[i].Data), floats(want.Data), scale); err != nil {
					t.Errorf("gradient of input %d: %v", i, err)
				}
			}
		})
	}
}

func TestBlockAttnRes(t *testing.T) {
	list := readCases(t, "testdata/blockattnres.json")
	if len(list) != 30 {
		t.Fatalf("%d cases, want 30", len(list))
	}
	dev := cpu.New()
	defer dev.Close()
	for _, path := range []string{"fused", "decomposed"} {
		for _, c := range list {
			t.Run(path+"/"+c.Name(), func(t *testing.T) {
				got := c.Run(dev, path)
				if got.Err != nil {
					t.Fatal(got.Err)
				}
				if c.Block.Want.Err != nil {
					t.Fatal(c.Block.Want.Err)
				}
				r, want := got.Value.(*cases.BlockResult), c.Block.Want.Value
				d, err := tensor.ParseDType(c.Block.DType)
				if err != nil {
					t.Fatal(err)
				}
				var seen [][]float64
				for _, n := range c.Block.Blocks {
					seen = append(seen, n.Data)
				}
				for _, n := range want.GradBlocks {
					seen = append(seen, n.Data)
				}
				for _, n := range []*cases.Nested{c.Block.PartialBlock, c.Block.GradH, want.GradPartialBlock, want.GradProjWeight, want.GradRMSNormGamma} {
					if n != nil {
						seen = append(seen, n.Data)
					}
				}
				scale := largest(seen...)
				check := func(name string, d tensor.DType, got, want *cases.Nested, scale float64) {
					t.Helper()
					if (got == nil) != (want == nil) {
						t.Errorf("%s: got %v, want %v", name, got, want)
						return
					}
					if got == nil {
						return
					}
					if !tensor.Shape(got.Shape).Equal(want.Shape) {
						t.Errorf("%s: shape %v, want %v", name, got.Shape, want.Shape)
					}
					// 16-bit results: a unit in the last place of the rounded answer, and no more than that.
					if d.IsHalf() {
						scale *= 1e-2
					}
					if err := near(d, got.Data, want.Data, scale); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				check("output", d, r.Output, want.Output, scale)
				check("rms_cache", d.Wide(), r.RMSCache, want.RMSCache, largest(wantData(want.RMSCache)))
				check("alpha_cache", d.Wide(), r.AlphaCache, want.AlphaCache, 1)
				if len(r.GradBlocks) != len(want.GradBlocks) {
					t.Fatalf("%d gradients of blocks, want %d", len(r.GradBlocks), len(want.GradBlocks))
				}
				for i := range want.GradBlocks {
					check(fmt.Sprintf("grad_blocks[%d]", i), d, &r.GradBlocks[i], &want.GradBlocks[i], scale)
				}
				check("grad_partial_block", d, r.GradPartialBlock, want.GradPartialBlock, scale)
				check("grad_proj_weight", d, r.GradProjWeight, want.GradProjWeight, scale)
				check("grad_rmsnorm_gamma", d, r.GradRMSNormGamma, want.GradRMSNormGamma, scale)
			})
		}
	}
}

func wantData(n *cases.Nested) []float64 {
	if n == nil {
		return nil
	}
	return n.Data
}
