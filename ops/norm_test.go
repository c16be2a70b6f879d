package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// normalized is the plain computation of both norms.
func normalized(x array, weight, bias *array, eps float64, center bool) array {
	last := len(x.shape) - 1
	row := func(i []int) []float64 {
		d := x.shape[last]
		at := append([]int{}, i...)
		var r []float64
		for k := range d {
			at[last] = k
			r = append(r, x.at(at...))
		}
		return r
	}
	return build(x.shape, func(i []int) float64 {
		r, mean, square := row(i), 0.0, 0.0
		if center {
			mean = average(r)
		}
		for _, v := range r {
			square += (v - mean) * (v - mean)
		}
		y := (x.at(i...) - mean) / math.Sqrt(square/float64(len(r))+eps)
		if weight != nil {
			y *= weight.at(i...)
		}
		if bias != nil {
			y += bias.at(i...)
		}
		return y
	})
}

func normChecks() []check {
	var list []check
	for _, s := range []tensor.Shape{{13}, {3, 7}, {2, 3, 5}, {3, 1}, {1}, {0, 3}} {
		for _, eps := range []float64{1e-5, 0.3} {
			for _, u := range []struct {
				op, about    string
				weight, bias int // the operand that it is; 0: none
			}{
				{"RMSNorm", "alone", 0, 0}, {"RMSNorm", "weight", 1, 0},
				{"LayerNorm", "alone", 0, 0}, {"LayerNorm", "weight", 1, 0}, {"LayerNorm", "bias", 0, 1}, {"LayerNorm", "weight and bias", 1, 2},
			} {
				c := check{op: u.op, about: fmt.Sprint(u.about, " eps ", eps), shapes: []tensor.Shape{s}}
				for i := range max(u.weight, u.bias) {
					c.shapes, c.optional = append(c.shapes, s[len(s)-1:]), append(c.optional, i+1)
				}
				c.domain = func(operand int, x float64) float64 {
					if operand == 0 {
						return apart(0)(0, x)
					}
					return x
				}
				c.apply = func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
					var weight, bias *autograd.Var
					if u.weight > 0 {
						weight = in[u.weight]
					}
					if u.bias > 0 {
						bias = in[u.bias]
					}
					if u.op == "LayerNorm" {
						return ops.LayerNorm(in[0], weight, bias, eps)
					}
					return ops.RMSNorm(in[0], weight, eps)
				}
				c.want = func(in []array) array {
					var weight, bias *array
					if u.weight > 0 {
						weight = &in[u.weight]
					}
					if u.bias > 0 {
						bias = &in[u.bias]
					}
					return normalized(in[0], weight, bias, eps, u.op == "LayerNorm")
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// TestNormOfZeros: rows of zeros, and rows of equal numbers, give zeros (or the bias) and finite gradients.
func TestNormOfZeros(t *testing.T) {
	for _, d := range floats {
		tape := newTape(t)
		x := watch(tape, d, make([]float64, 6), 2, 3)
		y := ops.RMSNorm(x, nil, 1e-6)
		equal(t, "rms norm", values(t, y), make([]float64, 6))
		for _, g := range gradients(t, y, x)[0] {
			if g != tensor.Round(d, tensor.Round(d.Wide(), 1/math.Sqrt(1e-6))) && math.Abs(g-1000) > 4 {
				t.Errorf("%v: the gradient at 0 is %v, want 1000", d, g)
			}
		}
		tape = newTape(t)
		x, b := watch(tape, d, []float64{3, 3, 3, 0, 0, 0}, 2, 3), watch(tape, d, []float64{1, 2, 3}, 3)
		y = ops.LayerNorm(x, nil, b, 1e-5)
		equal(t, "layer norm", values(t, y), []float64{1, 2, 3, 1, 2, 3})
		for _, g := range gradients(t, y, x)[0] {
			if g != 0 {
				t.Errorf("%v: the gradient of a constant row by ones is %v", d, g)
			}
		}
	}
}

// TestNormRange: over the whole range of a dtype, finite rows give finite, right results.
func TestNormRange(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		for _, scale := range []float64{0x1p-120, 0x1p-70, 0x1p-10, 0x1p10, 0x1p70, 0x1p120} {
			if d == tensor.Float16 && math.Abs(math.Log2(scale)) > 10 {
				continue
			}
			x := []float64{3 * scale, -4 * scale, 0, 5 * scale}
			rms := math.Sqrt(50.0 / 4)
			want := array{tensor.Shape{4}, []float64{3 / rms, -4 / rms, 0, 5 / rms}}
			r, err := evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.RMSNorm(in[0], nil, 0) }, []*tensor.Tensor{laid("dense", d, x, 4)}, denseSeed)
			if err != nil {
				t.Fatal(err)
			}
			if err := near(r.out, want, 1); err != nil {
				t.Errorf("%v rms norm at %g: %v", d, scale, err)
			}
			want = normalized(array{tensor.Shape{4}, []float64{3, -4, 0, 5}}, nil, nil, 0, true)
			r, err = evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.LayerNorm(in[0], nil, nil, 0) }, []*tensor.Tensor{laid("dense", d, x, 4)}, denseSeed)
			if err != nil {
				t.Fatal(err)
			}
			if err := near(r.out, want, 2); err != nil {
				t.Errorf("%v layer norm at %g: %v", d, scale, err)
			}
		}
	}
}

// TestNormRowsApart: a NaN in one row stays in that row; only the weight sees it.
func TestNormRowsApart(t *testing.T) {
	x := normal(8, 12)
	run := func(x []float64) outcome {
		r, err := evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.LayerNorm(ops.RMSNorm(in[0], nil, 1e-6), nil, nil, 1e-6)
		}, []*tensor.Tensor{laid("dense", tensor.Float32, x, 3, 4)}, denseSeed)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	clean := run(x)
	bad := append([]float64{}, x...)
	bad[5] = math.NaN()
	dirty := run(bad)
	for _, i := range []int{0, 2} {
		for k := range 2 {
			a, b := []*tensor.Tensor{clean.out, clean.grads[0]}[k], []*tensor.Tensor{dirty.out, dirty.grads[0]}[k]
			if err := same(must(b.Select(0, i)), must(a.Select(0, i))); err != nil {
				t.Errorf("row %d: %v", i, err)
			}
		}
	}
}

func TestNormRefusals(t *testing.T) {
	var list []refusal
	for _, eps := range []float64{-1e-6, math.NaN(), math.Inf(1)} {
		list = append(list,
			refusal{"eps", "RMSNorm", tensor.ErrValue, []string{"eps"}, func(p *autograd.Tape) *autograd.Var { return ops.RMSNorm(ones(p, 3), nil, eps) }},
			refusal{"eps", "LayerNorm", tensor.ErrValue, []string{"eps"}, func(p *autograd.Tape) *autograd.Var { return ops.LayerNorm(ones(p, 3), nil, nil, eps) }})
	}
	testRefusals(t, append(list, []refusal{
		{"a scalar", "RMSNorm", tensor.ErrRank, []string{"x is ()"}, func(p *autograd.Tape) *autograd.Var { return ops.RMSNorm(ones(p), nil, 0) }},
		{"no width", "RMSNorm", tensor.ErrShape, []string{"x is (2,0)"}, func(p *autograd.Tape) *autograd.Var { return ops.RMSNorm(ones(p, 2, 0), nil, 0) }},
		{"weight", "RMSNorm", tensor.ErrShape, []string{"weight is (2)", "(3)"}, func(p *autograd.Tape) *autograd.Var { return ops.RMSNorm(ones(p, 2, 3), ones(p, 2), 0) }},
		{"weight of two axes", "LayerNorm", tensor.ErrShape, []string{"weight is (1,3)"}, func(p *autograd.Tape) *autograd.Var { return ops.LayerNorm(ones(p, 2, 3), ones(p, 1, 3), nil, 0) }},
		{"bias", "LayerNorm", tensor.ErrShape, []string{"bias is (1)"}, func(p *autograd.Tape) *autograd.Var { return ops.LayerNorm(ones(p, 2, 3), nil, ones(p, 1), 0) }},
		{"bias of another type", "LayerNorm", tensor.ErrDType, []string{"bias", "float16"}, func(p *autograd.Tape) *autograd.Var {
			return ops.LayerNorm(ones(p, 2, 3), nil, watch(p, tensor.Float16, make([]float64, 3), 3), 0)
		}},
	}...))
}
