package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// crossEntropy is the plain computation.
func crossEntropy(x array, targets []float64, r ops.Reduction, ignore float64) array {
	c := x.shape[len(x.shape)-1]
	to := x.shape[:len(x.shape)-1]
	losses, counted := make([]float64, len(targets)), 0.0
	for i, target := range targets {
		if target != ignore {
			row := x.data[i*c : (i+1)*c]
			losses[i] = logSumExp(row) - row[int(target)]
			counted++
		}
	}
	switch r {
	case ops.PerTarget:
		return array{to, losses}
	case ops.SumOfAll:
		return array{tensor.Shape{}, []float64{total(losses)}}
	}
	return array{tensor.Shape{}, []float64{total(losses) / counted}}
}

func lossChecks() []check {
	var list []check
	for _, s := range []struct {
		shape   tensor.Shape
		targets []float64
		ignore  int
	}{
		{tensor.Shape{3}, []float64{1}, ops.IgnoreIndex},
		{tensor.Shape{1, 1}, []float64{0}, ops.IgnoreIndex},
		{tensor.Shape{3, 7}, []float64{6, 0, 6}, ops.IgnoreIndex},
		{tensor.Shape{3, 7}, []float64{6, -100, 2}, ops.IgnoreIndex},
		{tensor.Shape{13, 3}, []float64{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 2, 0, 1}, 2},
		{tensor.Shape{2, 3, 5}, []float64{4, 0, 0, 9, 3, 9}, 9},
		{tensor.Shape{0, 3}, nil, ops.IgnoreIndex},
	} {
		for name, r := range map[string]ops.Reduction{"mean": ops.MeanOfCounted, "sum": ops.SumOfAll, "per target": ops.PerTarget} {
			if len(s.targets) == 0 && r == ops.MeanOfCounted {
				continue // see TestAllIgnored
			}
			list = append(list, check{op: "CrossEntropy", about: fmt.Sprint(name, " ignoring ", s.ignore), shapes: []tensor.Shape{s.shape},
				apply: func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
					return ops.CrossEntropy(in[0], ids(p, s.targets, s.shape[:len(s.shape)-1]...), r, s.ignore)
				},
				want: func(in []array) array { return crossEntropy(in[0], s.targets, r, float64(s.ignore)) }})
		}
	}
	return list
}

// TestIgnoredRows: what an ignored row holds, NaN and Inf included, changes
// neither the loss nor any gradient, and its own gradient is 0.
func TestIgnoredRows(t *testing.T) {
	for _, d := range floats {
		for _, r := range []ops.Reduction{ops.MeanOfCounted, ops.SumOfAll, ops.PerTarget} {
			run := func(a, b, c float64) outcome {
				x := normal(4, 12)
				x[3], x[4], x[5] = a, b, c
				out, err := evaluate(func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
					return ops.CrossEntropy(in[0], ids(p, []float64{2, -100, 0, 1}, 4), r, ops.IgnoreIndex)
				}, []*tensor.Tensor{laid("dense", d, x, 4, 3)}, denseSeed)
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			want := run(0, 0, 0)
			equal(t, "the gradient of an ignored row", must(must(want.grads[0].Select(0, 1)).Float64s()), []float64{0, 0, 0})
			for _, x := range [][3]float64{{math.NaN(), 0, 0}, {math.Inf(1), 0, 1}, {math.Inf(-1), math.Inf(-1), math.Inf(-1)}, {math.NaN(), math.Inf(1), math.Inf(-1)}, {9, -9, 3}} {
				sameOutcome(t, fmt.Sprint(d, " ", x), run(x[0], x[1], x[2]), want)
			}
		}
	}
}

// TestAllIgnored: the mean of no loss is NaN, every other loss 0, and no logit gets a gradient.
func TestAllIgnored(t *testing.T) {
	for _, d := range floats {
		for r, want := range map[ops.Reduction][]float64{ops.MeanOfCounted: {math.NaN()}, ops.SumOfAll: {0}, ops.PerTarget: {0, 0}} {
			tape := newTape(t)
			x := watch(tape, d, normal(6, 6), 2, 3)
			y := ops.CrossEntropy(x, ids(tape, []float64{-100, -100}, 2), r, ops.IgnoreIndex)
			equal(t, "loss", values(t, y), want)
			equal(t, "gradient", gradients(t, y, x)[0], make([]float64, 6))
		}
	}
	tape := newTape(t)
	equal(t, "the mean of no targets", values(t, ops.CrossEntropy(ones(tape, 0, 3), ids(tape, nil, 0), ops.MeanOfCounted, ops.IgnoreIndex)), []float64{math.NaN()})
}

// TestLossDType: the loss of 16-bit logits is float32 and not rounded to 16 bits.
func TestLossDType(t *testing.T) {
	x := []float64{0.5, -1.25, 2, 3, 1, -7}
	for _, d := range floats {
		for _, r := range []ops.Reduction{ops.MeanOfCounted, ops.SumOfAll, ops.PerTarget} {
			tape := newTape(t)
			v := watch(tape, d, x, 2, 3)
			y := ops.CrossEntropy(v, ids(tape, []float64{1, 2}, 2), r, ops.IgnoreIndex)
			if y.DType() != d.Wide() {
				t.Errorf("the loss of %v is %v", d, y.DType())
			}
			want := crossEntropy(array{tensor.Shape{2, 3}, x}, []float64{1, 2}, r, -100)
			close(t, "loss", values(t, y), want.data, 3e-6)
		}
	}
}

// TestFarLogits: large logits lose nothing, in the loss or in the gradient.
func TestFarLogits(t *testing.T) {
	for _, d := range floats {
		for _, c := range []struct {
			x      []float64
			target int
		}{
			{[]float64{-431, 279, 427}, 0}, {[]float64{-431, 279, 427}, 2}, {[]float64{9984, 9984, 9984}, 1}, {[]float64{-1e4, -1e4 - 8, -1e4 + 8}, 1}, {[]float64{0, math.Inf(-1), 0}, 2}, {[]float64{6e4, -6e4, 6e4}, 0}, {[]float64{1e38, -1e38, 1e38}, 2},
		} {
			if d == tensor.Float16 && largest(c.x) > 65504 {
				continue
			}
			tape := newTape(t)
			x := watch(tape, d, c.x, 1, 3)
			shifted := append([]float64{}, values(t, x)...)
			top := extreme(math.Max)(shifted)
			for i := range shifted {
				shifted[i] -= top
			}
			lse := logSumExp(shifted)
			var grad []float64
			for i, s := range shifted {
				g := math.Exp(s - lse)
				if i == c.target {
					g--
				}
				grad = append(grad, tensor.Round(d, g))
			}
			y := ops.CrossEntropy(x, ids(tape, []float64{float64(c.target)}, 1), ops.MeanOfCounted, ops.IgnoreIndex)
			loss := lse - shifted[c.target]
			close(t, fmt.Sprint(d, " loss of ", c.x), values(t, y), []float64{loss}, 2e-7*math.Max(1, loss))
			close(t, fmt.Sprint(d, " gradient of ", c.x), gradients(t, y, x)[0], grad, 2e-7)
		}
	}
}

// TestTargetsOfAnyLayout: strides and integer type of the targets change nothing.
func TestTargetsOfAnyLayout(t *testing.T) {
	targets := []float64{1, 0, 4, -100, 2, 3}
	run := func(y *tensor.Tensor) outcome {
		r, err := evaluate(func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.CrossEntropy(in[0], p.Const(y), ops.PerTarget, ops.IgnoreIndex)
		}, []*tensor.Tensor{laid("dense", tensor.Float32, normal(2, 30), 2, 3, 5)}, denseSeed)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := run(laid("dense", tensor.Int64, targets, 2, 3))
	for _, d := range []tensor.DType{tensor.Int32, tensor.Int64} {
		for _, l := range layouts {
			sameOutcome(t, d.String()+" "+string(l), run(laid(l, d, targets, 2, 3)), want)
		}
	}
	row := repeated(tensor.Int32, targets, 2, 3)
	sameOutcome(t, "expanded", run(row), run(denseCopy(row)))
}

func TestLossRefusals(t *testing.T) {
	loss := func(x, y *autograd.Var) *autograd.Var {
		return ops.CrossEntropy(x, y, ops.MeanOfCounted, ops.IgnoreIndex)
	}
	testRefusals(t, []refusal{
		{"a class past the end", "CrossEntropy", tensor.ErrIndex, []string{"targets[1] is 3"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), ids(p, []float64{0, 3}, 2)) }},
		{"a negative class", "CrossEntropy", tensor.ErrIndex, []string{"targets[0] is -1"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), ids(p, []float64{-1, 0}, 2)) }},
		{"another ignored one", "CrossEntropy", tensor.ErrIndex, []string{"targets[0] is -100"}, func(p *autograd.Tape) *autograd.Var {
			return ops.CrossEntropy(ones(p, 2, 3), ids(p, []float64{-100, 0}, 2), ops.SumOfAll, -1)
		}},
		{"shapes", "CrossEntropy", tensor.ErrShape, []string{"targets is (3)", "(2)"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), ids(p, make([]float64, 3), 3)) }},
		{"targets of one axis more", "CrossEntropy", tensor.ErrShape, []string{"targets is (2,1)"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), ids(p, make([]float64, 2), 2, 1)) }},
		{"float targets", "CrossEntropy", tensor.ErrDType, []string{"targets is float64"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), ones(p, 2)) }},
		{"no targets", "CrossEntropy", tensor.ErrMissing, []string{"targets is nil"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 3), nil) }},
		{"no logits", "CrossEntropy", tensor.ErrMissing, []string{"nil"}, func(p *autograd.Tape) *autograd.Var { return loss(nil, ids(p, []float64{0}, 1)) }},
		{"no classes", "CrossEntropy", tensor.ErrShape, []string{"logits is (2,0)"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p, 2, 0), ids(p, make([]float64, 2), 2)) }},
		{"a scalar", "CrossEntropy", tensor.ErrShape, []string{"logits is ()"}, func(p *autograd.Tape) *autograd.Var { return loss(ones(p), ids(p, make([]float64, 1))) }},
		{"reduction", "CrossEntropy", tensor.ErrValue, []string{"reduction", "7"}, func(p *autograd.Tape) *autograd.Var {
			return ops.CrossEntropy(ones(p, 2, 3), ids(p, make([]float64, 2), 2), 7, 0)
		}},
	})
}
