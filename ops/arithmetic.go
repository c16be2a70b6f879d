package ops

import (
	"math"
	"strconv"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Add is a + b, broadcast.
func Add(a, b *autograd.Var) *autograd.Var { return binary("add", device.Add, a, b) }

// Sub is a - b, broadcast.
func Sub(a, b *autograd.Var) *autograd.Var { return binary("sub", device.Sub, a, b) }

// Mul is a * b element by element, broadcast.
func Mul(a, b *autograd.Var) *autograd.Var { return binary("mul", device.Mul, a, b) }

// Div is a / b element by element, broadcast.
func Div(a, b *autograd.Var) *autograd.Var { return binary("div", device.Div, a, b) }

// Maximum is the larger of a and b, broadcast; NaN if either is. Where they are
// equal each gets half of the gradient.
func Maximum(a, b *autograd.Var) *autograd.Var { return binary("maximum", device.Maximum, a, b) }

// Minimum is the smaller of a and b, broadcast; NaN if either is. Where they
// are equal each gets half of the gradient.
func Minimum(a, b *autograd.Var) *autograd.Var { return binary("minimum", device.Minimum, a, b) }

func binary(op string, f device.Binary, a, b *autograd.Var) *autograd.Var {
	t, ok := begin(op, a, b)
	if !ok {
		return t.Dead()
	}
	out := t.Binary(f, a.DType(), a.Tensor(), b.Tensor())
	if f == device.Add || f == device.Sub {
		return t.Record(out, sums.of(sum{f: f, a: a.Shape(), b: b.Shape(), dtype: a.DType()}), a, b)
	}
	return t.Record(out, products.of(product{f: f, a: a.Tensor(), b: b.Tensor()}), a, b)
}

// sum is a + b or a - b: its backward needs no values.
type sum struct {
	room
	f     device.Binary
	a, b  tensor.Shape
	dtype tensor.DType
}

var sums nodes[sum]

func (n *sum) Done() { sums.done(n) }

func (n *sum) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := n.give(nil, nil)
	if want[0] {
		out[0] = reduceTo(s, n.dtype, g, n.a)
	}
	if want[1] {
		out[1] = reduceTo(s, n.dtype, g, n.b)
		if n.f == device.Sub {
			minus := s.Unary(device.Unary{Func: device.Neg}, n.dtype, out[1])
			if !out[1].Is(g) {
				s.Free(out[1])
			}
			out[1] = minus
		}
	}
	return out
}

// reduceTo sums a gradient to the shape of an operand that was broadcast; where
// nothing was, it is g itself.
func reduceTo(s *device.Stream, dtype tensor.DType, g *tensor.Tensor, shape tensor.Shape) *tensor.Tensor {
	if g.Shape().Equal(shape) && g.DType() == dtype {
		return g
	}
	return s.ReduceTo(dtype, g, shape)
}

// product is one of the binary functions whose derivative needs the operands.
type product struct {
	room
	f    device.Binary
	a, b *tensor.Tensor
}

var products nodes[product]

func (n *product) Done() { products.done(n) }

func (n *product) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	d, wide := n.a.DType(), n.a.DType().Wide()
	c := scratch{s: s}
	defer c.done()
	// A gradient of the broadcast shape, and that of the operand.
	finish := func(f device.Binary, x, y *tensor.Tensor, shape tensor.Shape) *tensor.Tensor {
		if g.Shape().Equal(shape) {
			return s.Binary(f, d, x, y)
		}
		return s.ReduceTo(d, c.keep(s.Binary(f, wide, x, y)), shape)
	}
	out := n.give(nil, nil)
	switch n.f {
	case device.Mul:
		if want[0] {
			out[0] = finish(device.Mul, g, n.b, n.a.Shape())
		}
		if want[1] {
			out[1] = finish(device.Mul, g, n.a, n.b.Shape())
		}
	case device.Div:
		if want[0] {
			out[0] = finish(device.Div, g, n.b, n.a.Shape())
		}
		if want[1] { // d(a/b)/db = -(a/b)/b
			q := c.keep(s.Binary(device.Div, wide, n.a, n.b))
			q = c.keep(s.Binary(device.Div, wide, q, n.b))
			q = c.keep(s.Unary(device.Unary{Func: device.Neg}, wide, q))
			out[1] = finish(device.Mul, g, q, n.b.Shape())
		}
	case device.Maximum, device.Minimum:
		a, b := n.a, n.b
		if n.f == device.Minimum {
			a, b = b, a
		}
		if want[0] {
			out[0] = finish(device.Mul, g, c.keep(s.Binary(device.Greater, wide, a, b)), n.a.Shape())
		}
		if want[1] {
			out[1] = finish(device.Mul, g, c.keep(s.Binary(device.Greater, wide, b, a)), n.b.Shape())
		}
	}
	return out
}

// Neg is -x.
func Neg(x *autograd.Var) *autograd.Var { return unary("neg", device.Unary{Func: device.Neg}, x) }

// Abs is |x|; its derivative at 0 is 0.
func Abs(x *autograd.Var) *autograd.Var { return unary("abs", device.Unary{Func: device.Abs}, x) }

// Exp is e to the x.
func Exp(x *autograd.Var) *autograd.Var { return unary("exp", device.Unary{Func: device.Exp}, x) }

// Log is the natural logarithm.
func Log(x *autograd.Var) *autograd.Var { return unary("log", device.Unary{Func: device.Log}, x) }

// Sqrt is the square root.
func Sqrt(x *autograd.Var) *autograd.Var { return unary("sqrt", device.Unary{Func: device.Sqrt}, x) }

// Rsqrt is 1/sqrt(x).
func Rsqrt(x *autograd.Var) *autograd.Var { return unary("rsqrt", device.Unary{Func: device.Rsqrt}, x) }

// Reciprocal is 1/x.
func Reciprocal(x *autograd.Var) *autograd.Var {
	return unary("reciprocal", device.Unary{Func: device.Reciprocal}, x)
}

// Square is x*x.
func Square(x *autograd.Var) *autograd.Var {
	return unary("square", device.Unary{Func: device.Square}, x)
}

// Sin is the sine of x in radians.
func Sin(x *autograd.Var) *autograd.Var { return unary("sin", device.Unary{Func: device.Sin}, x) }

// Cos is the cosine of x in radians.
func Cos(x *autograd.Var) *autograd.Var { return unary("cos", device.Unary{Func: device.Cos}, x) }

// Tanh is the hyperbolic tangent.
func Tanh(x *autograd.Var) *autograd.Var { return unary("tanh", device.Unary{Func: device.Tanh}, x) }

// Erf is the error function.
func Erf(x *autograd.Var) *autograd.Var { return unary("erf", device.Unary{Func: device.Erf}, x) }

// Sigmoid is 1/(1+exp(-x)).
func Sigmoid(x *autograd.Var) *autograd.Var {
	return unary("sigmoid", device.Unary{Func: device.Sigmoid}, x)
}

// ReLU is max(x, 0); its derivative at 0 is 0.
func ReLU(x *autograd.Var) *autograd.Var { return unary("relu", device.Unary{Func: device.ReLU}, x) }

// GELU is x times the normal distribution function of x (Hendrycks and Gimpel, 2016).
func GELU(x *autograd.Var) *autograd.Var { return unary("gelu", device.Unary{Func: device.GELU}, x) }

// GELUTanh is the tanh form of GELU: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
func GELUTanh(x *autograd.Var) *autograd.Var {
	return unary("gelu", device.Unary{Func: device.GELUTanh}, x)
}

// SiLU is x times its sigmoid.
func SiLU(x *autograd.Var) *autograd.Var { return unary("silu", device.Unary{Func: device.SiLU}, x) }

// Clamp limits x to lo..hi; the derivative is 1 from lo to hi inclusive. lo
// must not be above hi, and neither may be NaN; infinities mean no limit.
func Clamp(x *autograd.Var, lo, hi float64) *autograd.Var {
	if !(lo <= hi) {
		t, ok := begin("clamp", x)
		if !ok {
			return t.Dead()
		}
		return fail(t, "clamp", "limits", number(lo)+" to "+number(hi), "lo <= hi", tensor.ErrValue)
	}
	return unary("clamp", device.Unary{Func: device.Clamp, A: lo, B: hi}, x)
}

// Pow is x to a fixed exponent.
func Pow(x *autograd.Var, exponent float64) *autograd.Var {
	return unary("pow", device.Unary{Func: device.Pow, A: exponent}, x)
}

// AddScalar is x + c.
func AddScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("add", device.Unary{Func: device.AddScalar, A: c}, x)
}

// SubScalar is x - c.
func SubScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("sub", device.Unary{Func: device.AddScalar, A: -c}, x)
}

// SubFromScalar is c - x.
func SubFromScalar(c float64, x *autograd.Var) *autograd.Var {
	return unary("sub", device.Unary{Func: device.SubFrom, A: c}, x)
}

// MulScalar is x * c.
func MulScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("mul", device.Unary{Func: device.MulScalar, A: c}, x)
}

// DivScalar is x / c.
func DivScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("div", device.Unary{Func: device.DivScalar, A: c}, x)
}

// DivIntoScalar is c / x.
func DivIntoScalar(c float64, x *autograd.Var) *autograd.Var {
	return unary("div", device.Unary{Func: device.DivInto, A: c}, x)
}

// MaximumScalar is the larger of x and c; the derivative at c is 1/2.
func MaximumScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("maximum", device.Unary{Func: device.MaxScalar, A: c}, x)
}

// MinimumScalar is the smaller of x and c; the derivative at c is 1/2.
func MinimumScalar(x *autograd.Var, c float64) *autograd.Var {
	return unary("minimum", device.Unary{Func: device.MinScalar, A: c}, x)
}

func number(x float64) string {
	if math.IsNaN(x) {
		return "NaN"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func unary(op string, f device.Unary, x *autograd.Var) *autograd.Var {
	t, ok := begin(op, x)
	if !ok {
		return t.Dead()
	}
	return t.Record(t.Unary(f, x.DType(), x.Tensor()), elementwises.of(elementwise{f: f, x: x.Tensor()}), x)
}

// elementwise is f(x); its derivative is computed from x, not from the rounded result.
type elementwise struct {
	room
	f device.Unary
	x *tensor.Tensor
}

var elementwises nodes[elementwise]

func (n *elementwise) Done() { elementwises.done(n) }

func (n *elementwise) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.give(s.UnaryGrad(n.f, n.x.DType(), g, n.x))
}

// SwiGLU is silu(gate) * up, for shapes that are equal (Shazeer, "GLU Variants Improve Transformer", 2020).
func SwiGLU(gate, up *autograd.Var) *autograd.Var {
	t, ok := begin("swiglu", gate, up)
	if !ok {
		return t.Dead()
	}
	if !gate.Shape().Equal(up.Shape()) {
		return fail(t, "swiglu", "up", up.Shape().String(), gate.Shape().String(), tensor.ErrShape)
	}
	d := gate.DType()
	act := t.Unary(device.Unary{Func: device.SiLU}, d.Wide(), gate.Tensor())
	out := t.Binary(device.Mul, d, act, up.Tensor())
	t.Free(act)
	return t.Record(out, swiGLUs.of(swiGLU{gate: gate.Tensor(), up: up.Tensor()}), gate, up)
}

type swiGLU struct {
	room
	gate, up *tensor.Tensor
}

var swiGLUs nodes[swiGLU]

func (n *swiGLU) Done() { swiGLUs.done(n) }

func (n *swiGLU) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	d, silu := n.gate.DType(), device.Unary{Func: device.SiLU}
	out := n.give(nil, nil)
	if want[0] {
		gu := s.Binary(device.Mul, d.Wide(), g, n.up)
		out[0] = s.UnaryGrad(silu, d, gu, n.gate)
		s.Free(gu)
	}
	if want[1] {
		act := s.Unary(silu, d.Wide(), n.gate)
		out[1] = s.Binary(device.Mul, d, g, act)
		s.Free(act)
	}
	return out
}
