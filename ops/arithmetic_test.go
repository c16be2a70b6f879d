package ops_test

import (
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

type (
	unaryOp  = func(*autograd.Var) *autograd.Var
	binaryOp = func(a, b *autograd.Var) *autograd.Var
)

// apart keeps numbers away from c, where a function has a kink or a pole.
func apart(c float64) func(int, float64) float64 {
	return func(_ int, x float64) float64 {
		if x < 0 {
			return c + x - 0.4
		}
		return c + x + 0.4
	}
}

func positive(_ int, x float64) float64 { return math.Abs(x) + 0.4 }

var pairs = [][]tensor.Shape{
	{{}, {}}, {{1}, {1}}, {{13}, {13}}, {{3, 7}, {3, 7}}, {{3, 1}, {1, 7}}, {{}, {2, 3}}, {{3, 7}, {}}, {{7}, {3, 7}}, {{2, 1, 5}, {3, 1}}, {{13}, {1}},
	{{1, 1}, {3}}, {{0, 3}, {1, 3}}, {{0}, {1}},
}

func arithmeticChecks() []check {
	var list []check
	for _, o := range []struct {
		name   string
		f      binaryOp
		want   func(a, b float64) float64
		domain func(int, float64) float64
	}{
		{"Add", ops.Add, func(a, b float64) float64 { return a + b }, nil},
		{"Sub", ops.Sub, func(a, b float64) float64 { return a - b }, nil},
		{"Mul", ops.Mul, func(a, b float64) float64 { return a * b }, nil},
		{"Div", ops.Div, func(a, b float64) float64 { return a / b }, apart(0)},
		{"Maximum", ops.Maximum, math.Max, nil},
		{"Minimum", ops.Minimum, math.Min, nil},
	} {
		for _, p := range pairs {
			list = append(list, check{op: o.name, shapes: p, domain: o.domain,
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return o.f(in[0], in[1]) },
				want: func(in []array) array {
					return build(must(tensor.Broadcast(in[0].shape, in[1].shape)), func(i []int) float64 { return o.want(in[0].at(i...), in[1].at(i...)) })
				}})
		}
		list = append(list, check{op: o.name, about: "the same operand twice", shapes: []tensor.Shape{{3, 7}}, domain: o.domain,
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return o.f(in[0], in[0]) },
			want: func(in []array) array {
				return build(in[0].shape, func(i []int) float64 { x := in[0].at(i...); return o.want(x, x) })
			}})
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, o := range []struct {
		name, about string
		f           unaryOp
		want        func(x float64) float64
		domain      func(int, float64) float64
	}{
		{"Neg", "", ops.Neg, func(x float64) float64 { return -x }, nil},
		{"Abs", "", ops.Abs, math.Abs, apart(0)},
		{"Exp", "", ops.Exp, math.Exp, nil},
		{"Log", "", ops.Log, math.Log, positive},
		{"Sqrt", "", ops.Sqrt, math.Sqrt, positive},
		{"Rsqrt", "", ops.Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }, positive},
		{"Reciprocal", "", ops.Reciprocal, func(x float64) float64 { return 1 / x }, apart(0)},
		{"Square", "", ops.Square, func(x float64) float64 { return x * x }, nil},
		{"Sin", "", ops.Sin, math.Sin, nil},
		{"Cos", "", ops.Cos, math.Cos, nil},
		{"Tanh", "", ops.Tanh, math.Tanh, nil},
		{"Erf", "", ops.Erf, math.Erf, nil},
		{"Sigmoid", "", ops.Sigmoid, sigmoid, nil},
		{"ReLU", "", ops.ReLU, func(x float64) float64 { return math.Max(x, 0) }, apart(0)},
		{"GELU", "", ops.GELU, func(x float64) float64 { return x / 2 * math.Erfc(-x/math.Sqrt2) }, nil},
		{"GELUTanh", "", ops.GELUTanh, func(x float64) float64 {
			return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}, nil},
		{"SiLU", "", ops.SiLU, func(x float64) float64 { return x * sigmoid(x) }, nil},
		{"Clamp", "below", func(x *autograd.Var) *autograd.Var { return ops.Clamp(x, 0, 99) }, func(x float64) float64 { return math.Max(x, 0) }, apart(0)},
		{"Clamp", "above", func(x *autograd.Var) *autograd.Var { return ops.Clamp(x, math.Inf(-1), 1) }, func(x float64) float64 { return math.Min(x, 1) }, apart(1)},
		{"Pow", "3", func(x *autograd.Var) *autograd.Var { return ops.Pow(x, 3) }, func(x float64) float64 { return math.Pow(x, 3) }, nil},
		{"Pow", "-2", func(x *autograd.Var) *autograd.Var { return ops.Pow(x, -2) }, func(x float64) float64 { return math.Pow(x, -2) }, positive},
		{"Pow", "0.3", func(x *autograd.Var) *autograd.Var { return ops.Pow(x, 0.3) }, func(x float64) float64 { return math.Pow(x, 0.3) }, positive},
		{"Pow", "0", func(x *autograd.Var) *autograd.Var { return ops.Pow(x, 0) }, func(x float64) float64 { return 1 }, nil},
		{"AddScalar", "", func(x *autograd.Var) *autograd.Var { return ops.AddScalar(x, 0.7) }, func(x float64) float64 { return x + 0.7 }, nil},
		{"SubScalar", "", func(x *autograd.Var) *autograd.Var { return ops.SubScalar(x, 0.7) }, func(x float64) float64 { return x - 0.7 }, nil},
		{"SubFromScalar", "", func(x *autograd.Var) *autograd.Var { return ops.SubFromScalar(0.7, x) }, func(x float64) float64 { return 0.7 - x }, nil},
		{"MulScalar", "", func(x *autograd.Var) *autograd.Var { return ops.MulScalar(x, -1.7) }, func(x float64) float64 { return x * -1.7 }, nil},
		{"DivScalar", "", func(x *autograd.Var) *autograd.Var { return ops.DivScalar(x, -1.7) }, func(x float64) float64 { return x / -1.7 }, nil},
		{"DivIntoScalar", "", func(x *autograd.Var) *autograd.Var { return ops.DivIntoScalar(-1.7, x) }, func(x float64) float64 { return -1.7 / x }, apart(0)},
		{"MaximumScalar", "", func(x *autograd.Var) *autograd.Var { return ops.MaximumScalar(x, 0.5) }, func(x float64) float64 { return math.Max(x, 0.5) }, apart(0.5)},
		{"MinimumScalar", "", func(x *autograd.Var) *autograd.Var { return ops.MinimumScalar(x, 0.5) }, func(x float64) float64 { return math.Min(x, 0.5) }, apart(0.5)},
	} {
		for _, s := range []tensor.Shape{{}, {1}, {13}, {3, 7}, {2, 0, 3}, {3, 1, 5}} {
			list = append(list, check{op: o.name, about: o.about, shapes: []tensor.Shape{s}, domain: o.domain,
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return o.f(in[0]) },
				want: func(in []array) array {
					return build(in[0].shape, func(i []int) float64 { return o.want(in[0].at(i...)) })
				}})
		}
	}
	for _, s := range []tensor.Shape{{}, {1}, {3, 7}, {13}, {0, 3}} {
		list = append(list, check{op: "SwiGLU", shapes: []tensor.Shape{s, s},
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.SwiGLU(in[0], in[1]) },
			want: func(in []array) array {
				return build(in[0].shape, func(i []int) float64 { x := in[0].at(i...); return x * sigmoid(x) * in[1].at(i...) })
			}})
	}
	return list
}

// TestKinks: the derivative where the documentation says what it is.
func TestKinks(t *testing.T) {
	zero := math.Copysign(0, -1)
	for _, k := range []struct {
		name string
		f    unaryOp
		x    []float64
		want []float64
	}{
		{"abs", ops.Abs, []float64{0, zero, -2, 2}, []float64{0, 0, -1, 1}},
		{"relu", ops.ReLU, []float64{0, zero, -2, 2}, []float64{0, 0, 0, 1}},
		{"clamp", func(x *autograd.Var) *autograd.Var { return ops.Clamp(x, -1, 2) }, []float64{-1, 2, -1.5, 2.5, 0}, []float64{1, 1, 0, 0, 1}},
		{"clamp to a point", func(x *autograd.Var) *autograd.Var { return ops.Clamp(x, 1, 1) }, []float64{1, 0, 2}, []float64{1, 0, 0}},
		{"maximum of a number", func(x *autograd.Var) *autograd.Var { return ops.MaximumScalar(x, 1) }, []float64{1, 0, 2}, []float64{0.5, 0, 1}},
		{"minimum of a number", func(x *autograd.Var) *autograd.Var { return ops.MinimumScalar(x, 1) }, []float64{1, 0, 2}, []float64{0.5, 1, 0}},
	} {
		for _, d := range floats {
			x := watch(newTape(t), d, k.x, len(k.x))
			equal(t, k.name, gradients(t, k.f(x), x)[0], k.want)
		}
	}
	for name, f := range map[string]binaryOp{"maximum": ops.Maximum, "minimum": ops.Minimum} {
		tape := newTape(t)
		a, b := watch(tape, tensor.BFloat16, []float64{1, 2, 3}, 3), watch(tape, tensor.BFloat16, []float64{1, 3, 2}, 3)
		g := gradients(t, f(a, b), a, b)
		want := [][]float64{{0.5, 0, 1}, {0.5, 1, 0}}
		if name == "minimum" {
			want = [][]float64{{0.5, 1, 0}, {0.5, 0, 1}}
		}
		equal(t, name, g[0], want[0])
		equal(t, name, g[1], want[1])
	}
}

// TestFarOut: values and derivatives at +-20, +-1e4 and the infinities stay what they tend to.
func TestFarOut(t *testing.T) {
	inf := math.Inf(1)
	x := []float64{-inf, -1e4, -20, 20, 1e4, inf}
	for _, f := range []struct {
		name        string
		f           unaryOp
		value, grad []float64
	}{
		{"sigmoid", ops.Sigmoid, []float64{0, 0, 0, 1, 1, 1}, []float64{0, 0, 0, 0, 0, 0}},
		{"tanh", ops.Tanh, []float64{-1, -1, -1, 1, 1, 1}, []float64{0, 0, 0, 0, 0, 0}},
		{"erf", ops.Erf, []float64{-1, -1, -1, 1, 1, 1}, []float64{0, 0, 0, 0, 0, 0}},
		{"gelu", ops.GELU, []float64{0, 0, 0, 20, 1e4, inf}, []float64{0, 0, 0, 1, 1, 1}},
		{"gelu tanh", ops.GELUTanh, []float64{0, 0, 0, 20, 1e4, inf}, []float64{0, 0, 0, 1, 1, 1}},
		{"silu", ops.SiLU, []float64{0, 0, 0, 20, 1e4, inf}, []float64{0, 0, 0, 1, 1, 1}},
	} {
		for _, d := range []tensor.DType{tensor.Float32, tensor.Float64} {
			v := watch(newTape(t), d, x, len(x))
			y := f.f(v)
			close(t, f.name, values(t, y), f.value, 1e-7)
			close(t, f.name+" gradient", gradients(t, y, v)[0], f.grad, 1e-7)
		}
	}
}

func TestNaNOfMaximum(t *testing.T) {
	tape := newTape(t)
	nan := math.NaN()
	a, b := watch(tape, tensor.Float32, []float64{nan, 1, 2}, 3), watch(tape, tensor.Float32, []float64{1, nan, 1}, 3)
	equal(t, "maximum", values(t, ops.Maximum(a, b)), []float64{nan, nan, 2})
	equal(t, "minimum", values(t, ops.Minimum(a, b)), []float64{nan, nan, 1})
}

// TestManyUses: gradients of one tensor by many uses are summed in float32 and rounded once.
func TestManyUses(t *testing.T) {
	tape := newTape(t)
	x := watch(tape, tensor.BFloat16, []float64{1}, 1)
	sum := x
	for range 299 {
		sum = ops.Add(sum, x)
	}
	equal(t, "300 uses", gradients(t, ops.Mul(sum, full16(tape)), x)[0], []float64{300})
}

func full16(tape *autograd.Tape) *autograd.Var {
	return tape.Const(laid("dense", tensor.BFloat16, []float64{1}, 1))
}

func TestArithmeticRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"shapes", "Add", tensor.ErrShape, []string{"(2,3)", "(2,4)"}, func(p *autograd.Tape) *autograd.Var { return ops.Add(ones(p, 2, 3), ones(p, 2, 4)) }},
		{"shapes", "Div", tensor.ErrShape, []string{"(3)", "(2,4)"}, func(p *autograd.Tape) *autograd.Var { return ops.Div(ones(p, 3), ones(p, 2, 4)) }},
		{"limits", "Clamp", tensor.ErrValue, []string{"limits", "2 to 1"}, func(p *autograd.Tape) *autograd.Var { return ops.Clamp(ones(p, 3), 2, 1) }},
		{"NaN limit", "Clamp", tensor.ErrValue, []string{"limits", "NaN"}, func(p *autograd.Tape) *autograd.Var { return ops.Clamp(ones(p, 3), math.NaN(), 1) }},
		{"NaN limit", "Clamp", tensor.ErrValue, []string{"limits", "NaN"}, func(p *autograd.Tape) *autograd.Var { return ops.Clamp(ones(p, 3), 0, math.NaN()) }},
		{"broadcast", "SwiGLU", tensor.ErrShape, []string{"up", "(1,3)", "(2,3)"}, func(p *autograd.Tape) *autograd.Var { return ops.SwiGLU(ones(p, 2, 3), ones(p, 1, 3)) }},
	})
	if y := ops.Clamp(nil, 2, 1); y.Err() == nil {
		t.Error("clamp of nil: no error")
	}
}
