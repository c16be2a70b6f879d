package ops_test

import (
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func softmaxChecks() []check {
	var list []check
	for _, u := range []struct {
		shape tensor.Shape
		axis  int
	}{
		{tensor.Shape{1}, 0}, {tensor.Shape{13}, 0}, {tensor.Shape{3, 7}, 1}, {tensor.Shape{3, 7}, -2}, {tensor.Shape{2, 3, 5}, 1}, {tensor.Shape{2, 3, 1}, -1}, {tensor.Shape{3, 0}, 1}, {tensor.Shape{3, 0}, 0},
	} {
		a := (u.axis + len(u.shape)) % len(u.shape)
		add := func(op string, f func(*autograd.Var, int) *autograd.Var, want func(x, lse float64) float64) {
			list = append(list, check{op: op, about: "axis " + tensor.Shape{u.axis}.String(), shapes: []tensor.Shape{u.shape},
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return f(in[0], u.axis) },
				want: func(in []array) array {
					lse := fold(in[0], []int{a}, true, logSumExp)
					return build(u.shape, func(i []int) float64 { return want(in[0].at(i...), lse.at(i...)) })
				}})
		}
		add("Softmax", ops.Softmax, func(x, lse float64) float64 { return math.Exp(x - lse) })
		add("LogSoftmax", ops.LogSoftmax, func(x, lse float64) float64 { return x - lse })
	}
	return list
}

// TestSoftmaxFarOut: at +-1e4 results and gradients are as exact as near 0, and an entry of -Inf weighs nothing.
func TestSoftmaxFarOut(t *testing.T) {
	inf := math.Inf(1)
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64} {
		for _, x := range [][]float64{
			{1e4, 1e4 - 1, 1e4 - 0.5}, {-1e4, -1e4 - 1, -1e4 - 0.5}, {1e4, -1e4, 0}, {0, -inf, 1}, {-inf, -inf, -1e4}, {3e38, 3e38, -3e38},
		} {
			var shifted []float64 // the same softmax, about 0
			top := extreme(math.Max)(x)
			for _, v := range x {
				shifted = append(shifted, v-top)
			}
			lse := logSumExp(shifted)
			var p, logs, grad []float64
			seed := []float64{1, 2, 4}
			for _, v := range shifted {
				p, logs = append(p, math.Exp(v-lse)), append(logs, v-lse)
			}
			for i := range p {
				grad = append(grad, seed[i]-7*p[i]) // of log-softmax
			}
			v := watch(newTape(t), d, x, 3)
			y := ops.Softmax(v, 0)
			close(t, "softmax", values(t, y), p, 2e-7)
			v = watch(newTape(t), d, x, 3)
			y = ops.LogSoftmax(v, 0)
			for i, got := range values(t, y) {
				if want := tensor.Round(d, logs[i]); math.Abs(got-want) > 2e-7*math.Abs(want) && got != want {
					t.Errorf("%v: log-softmax of %v is %v, want %v", d, x, got, want)
				}
			}
			g := must(y.Tape().BackwardFrom(y, laid("dense", d, seed, 3)))
			close(t, "gradient of log-softmax", must(must(y.Tape().Download(g.Of(v.Tensor()))).Float64s()), grad, 2e-6)
		}
	}
}

func TestSoftmaxOfManyEqual(t *testing.T) {
	for _, d := range floats {
		x := watch(newTape(t), d, []float64{0.5}, 1)
		y := ops.Softmax(ops.Expand(x, 4096), 0)
		if s := total(values(t, y)); s != 1 {
			t.Errorf("%v: the softmax of 4096 equal numbers sums to %v", d, s)
		}
	}
}

// TestSoftmaxAxes: a negative axis is the positive one, and any axis is the last after a transposition.
func TestSoftmaxAxes(t *testing.T) {
	for _, d := range floats {
		for _, f := range []func(*autograd.Var, int) *autograd.Var{ops.Softmax, ops.LogSoftmax} {
			x := laid("dense", d, normal(5, 30), 2, 3, 5)
			run := func(g func(x *autograd.Var) *autograd.Var) outcome {
				r, err := evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return g(in[0]) }, []*tensor.Tensor{x}, denseSeed)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			want := run(func(x *autograd.Var) *autograd.Var { return f(x, 1) })
			sameOutcome(t, "negative", run(func(x *autograd.Var) *autograd.Var { return f(x, -2) }), want)
			sameOutcome(t, "transposed", run(func(x *autograd.Var) *autograd.Var { return ops.Transpose(f(ops.Transpose(x, 1, 2), 2), 1, 2) }), want)
		}
	}
}

func TestSoftmaxRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"no such axis", "Softmax", tensor.ErrAxis, []string{"axis", "2"}, func(p *autograd.Tape) *autograd.Var { return ops.Softmax(ones(p, 2, 3), 2) }},
		{"a scalar", "Softmax", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.Softmax(ones(p), 0) }},
		{"no such axis", "LogSoftmax", tensor.ErrAxis, []string{"axis", "-3"}, func(p *autograd.Tape) *autograd.Var { return ops.LogSoftmax(ones(p, 2, 3), -3) }},
	})
}
