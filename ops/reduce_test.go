package ops_test

import (
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func total(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

func average(x []float64) float64 { return total(x) / float64(len(x)) }

func logSumExp(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += math.Exp(v)
	}
	return math.Log(s)
}

func variance(correction int) func([]float64) float64 {
	return func(x []float64) float64 {
		m, s := average(x), 0.0
		for _, v := range x {
			s += (v - m) * (v - m)
		}
		return s / float64(len(x)-correction)
	}
}

func extreme(f func(a, b float64) float64) func([]float64) float64 {
	return func(x []float64) float64 {
		m := x[0]
		for _, v := range x {
			m = f(m, v)
		}
		return m
	}
}

func reduceChecks() []check {
	var list []check
	for _, o := range []struct {
		name, about string
		f           func(*autograd.Var, ops.Axes) *autograd.Var
		want        func([]float64) float64
		least       int // elements that are needed
	}{
		{"Sum", "", ops.Sum, total, 0},
		{"Mean", "", ops.Mean, average, 1},
		{"Max", "", ops.Max, extreme(math.Max), 1},
		{"Min", "", ops.Min, extreme(math.Min), 1},
		{"Var", "correction 0", func(x *autograd.Var, a ops.Axes) *autograd.Var { return ops.Var(x, a, 0) }, variance(0), 1},
		{"Var", "correction 1", func(x *autograd.Var, a ops.Axes) *autograd.Var { return ops.Var(x, a, 1) }, variance(1), 2},
		{"Var", "correction 2", func(x *autograd.Var, a ops.Axes) *autograd.Var { return ops.Var(x, a, 2) }, variance(2), 3},
		{"Var", "correction -1", func(x *autograd.Var, a ops.Axes) *autograd.Var { return ops.Var(x, a, -1) }, variance(-1), 1},
		{"LogSumExp", "", ops.LogSumExp, logSumExp, 1},
	} {
		for _, u := range []struct {
			about string
			shape tensor.Shape
			over  ops.Axes
			axes  []int
			keep  bool
		}{
			{"all", tensor.Shape{}, ops.All(), nil, false},
			{"all", tensor.Shape{1}, ops.All(), []int{0}, false},
			{"all", tensor.Shape{13}, ops.All(), []int{0}, false},
			{"all kept", tensor.Shape{3, 7}, ops.All().KeepDims(), []int{0, 1}, true},
			{"none said", tensor.Shape{3, 7}, ops.Over(), []int{0, 1}, false},
			{"0", tensor.Shape{3, 7}, ops.Over(0), []int{0}, false},
			{"-1", tensor.Shape{3, 7}, ops.Over(-1), []int{1}, false},
			{"1 kept", tensor.Shape{3, 7, 2}, ops.Over(1).KeepDims(), []int{1}, true},
			{"2 and 0", tensor.Shape{3, 2, 5}, ops.Over(2, 0), []int{0, 2}, false},
			{"-1 and 0 kept", tensor.Shape{3, 2, 5}, ops.Over(-1, 0).KeepDims(), []int{0, 2}, true},
			{"an axis of none", tensor.Shape{3, 0}, ops.Over(1), []int{1}, false},
			{"beside an axis of none", tensor.Shape{3, 0}, ops.Over(0), []int{0}, false},
		} {
			n := 1
			for _, a := range u.axes {
				n *= u.shape[a]
			}
			if n < o.least {
				continue
			}
			list = append(list, check{op: o.name, about: o.about + " " + u.about, shapes: []tensor.Shape{u.shape},
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return o.f(in[0], u.over) },
				want:  func(in []array) array { return fold(in[0], u.axes, u.keep, o.want) }})
		}
	}
	return list
}

// TestTies: equal extremes share the gradient evenly, along each axis.
func TestTies(t *testing.T) {
	for _, d := range floats {
		x := watch(newTape(t), d, []float64{2, 2, 1, 2, 0, 5}, 2, 3)
		equal(t, "max over -1", gradients(t, ops.Max(x, ops.Over(-1)), x)[0], []float64{0.5, 0.5, 0, 0, 0, 1})
		x = watch(newTape(t), d, []float64{2, 2, 1, 2, 0, 5}, 2, 3)
		equal(t, "max over 0", gradients(t, ops.Max(x, ops.Over(0)), x)[0], []float64{0.5, 1, 0, 0.5, 0, 1})
		x = watch(newTape(t), d, []float64{-1, 3, -1, -1, 0, -1}, 2, 3)
		equal(t, "min of all", gradients(t, ops.Min(x, ops.All()), x)[0], []float64{0.25, 0, 0.25, 0.25, 0, 0.25})
		x = watch(newTape(t), d, []float64{math.Inf(-1), 7}, 2)
		equal(t, "min with an infinity", gradients(t, ops.Min(x, ops.All()), x)[0], []float64{1, 0})
	}
}

func TestExtremesOfNaN(t *testing.T) {
	x := watch(newTape(t), tensor.BFloat16, []float64{1, math.NaN(), 3, 4, 5, 6}, 2, 3)
	equal(t, "max", values(t, ops.Max(x, ops.Over(1))), []float64{math.NaN(), 6})
	equal(t, "min", values(t, ops.Min(x, ops.Over(1))), []float64{math.NaN(), 4})
}

// TestVarCorrection: the divisor is never negative, and nothing is refused.
func TestVarCorrection(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		x          []float64
		correction int
		want       float64
	}{
		{[]float64{1, 3}, 0, 1}, {[]float64{1, 3}, 1, 2}, {[]float64{1, 3}, 2, inf}, {[]float64{1, 3}, 3, inf}, {[]float64{1, 3}, -2, 0.5}, {[]float64{2}, 0, 0}, {[]float64{2}, 1, nan},
	} {
		x := watch(newTape(t), tensor.Float64, c.x, len(c.x))
		equal(t, "var", values(t, ops.Var(x, ops.All(), c.correction)), []float64{c.want})
	}
}

// TestLogSumExpFarOut: numbers at +-1e4 neither overflow nor lose their gradient.
func TestLogSumExpFarOut(t *testing.T) {
	inf := math.Inf(1)
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64} {
		for _, c := range []struct {
			x          []float64
			value      float64
			grad       []float64
			noGradient bool
		}{
			{x: []float64{1e4, 1e4}, value: 1e4 + math.Ln2, grad: []float64{0.5, 0.5}},
			{x: []float64{-1e4, -1e4}, value: -1e4 + math.Ln2, grad: []float64{0.5, 0.5}},
			{x: []float64{1e4, -1e4}, value: 1e4, grad: []float64{1, 0}},
			{x: []float64{0, -inf, 0}, value: math.Ln2, grad: []float64{0.5, 0, 0.5}},
			{x: []float64{-inf, 3}, value: 3, grad: []float64{0, 1}},
			{x: []float64{-inf, -inf}, value: -inf, noGradient: true},
			{x: []float64{inf, 0}, value: inf, noGradient: true},
		} {
			x := watch(newTape(t), d, c.x, len(c.x))
			y := ops.LogSumExp(x, ops.All())
			close(t, "logsumexp", values(t, y), []float64{tensor.Round(d, c.value)}, 1e-9)
			if !c.noGradient {
				close(t, "its gradient", gradients(t, y, x)[0], c.grad, 2e-7)
			}
		}
	}
}

// TestLongSums: 512 ones in bfloat16 are 512, and a mean of many equal numbers is that number.
func TestLongSums(t *testing.T) {
	for _, d := range floats {
		x := watch(newTape(t), d, []float64{1}, 1)
		equal(t, "512 ones", values(t, ops.Sum(ops.Expand(x, 512), ops.All())), []float64{512})
		equal(t, "a mean", values(t, ops.Mean(ops.Expand(x, 3000), ops.All())), []float64{1})
	}
}

func TestReduceRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"no such axis", "Sum", tensor.ErrAxis, []string{"axis", "2", "(2,3)"}, func(p *autograd.Tape) *autograd.Var { return ops.Sum(ones(p, 2, 3), ops.Over(2)) }},
		{"an axis twice", "Mean", tensor.ErrAxis, []string{"(1,-1)"}, func(p *autograd.Tape) *autograd.Var { return ops.Mean(ones(p, 2, 3), ops.Over(1, -1)) }},
		{"of a scalar", "Max", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.Max(ones(p), ops.Over(0)) }},
		{"of nothing", "Mean", tensor.ErrShape, []string{"(0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Mean(ones(p, 0), ops.All()) }},
		{"of nothing", "Max", tensor.ErrShape, []string{"(3,0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Max(ones(p, 3, 0), ops.Over(1)) }},
		{"of nothing", "Min", tensor.ErrShape, []string{"(3,0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Min(ones(p, 3, 0), ops.Over(1)) }},
		{"of nothing", "Var", tensor.ErrShape, []string{"(0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Var(ones(p, 0), ops.All(), 0) }},
		{"of nothing", "LogSumExp", tensor.ErrShape, []string{"(0)"}, func(p *autograd.Tape) *autograd.Var { return ops.LogSumExp(ones(p, 0), ops.All()) }},
		{"no such axis", "LogSumExp", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.LogSumExp(ones(p, 2), ops.Over(-2)) }},
		{"no such axis", "Var", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.Var(ones(p, 2), ops.Over(1), 1) }},
	})
}
