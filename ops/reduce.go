package ops

import (
	"math"
	"slices"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Axes says over which axes a reduction runs.
type Axes struct {
	axes     []int
	keepDims bool
}

// All is every axis; the result is a scalar.
func All() Axes { return Axes{} }

// Over is the given axes, which the result no longer has. None given means all.
func Over(axes ...int) Axes { return Axes{axes: slices.Clone(axes)} }

// KeepDims is the same axes, left in the result with size 1.
func (a Axes) KeepDims() Axes { return Axes{axes: a.axes, keepDims: true} }

// resolve gives the folded axes, the result's shape, and that shape with the folded axes kept.
func (a Axes) resolve(shape tensor.Shape) (axes []int, out, kept tensor.Shape, err error) {
	if axes, err = shape.Axes(a.axes); err != nil {
		return nil, nil, nil, err
	}
	kept = append(tensor.Shape{}, shape...)
	folded := make([]bool, len(shape))
	for _, i := range axes {
		kept[i], folded[i] = 1, true
	}
	out = tensor.Shape{}
	for i, n := range kept {
		if !folded[i] || a.keepDims {
			out = append(out, n)
		}
	}
	return axes, out, kept, nil
}

// Sum adds over axes, in float64; the sum of nothing is 0.
func Sum(x *autograd.Var, over Axes) *autograd.Var {
	return reduce("sum", x, over, func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node) {
		return t.Reduce(device.Sum, x.DType(), x.Tensor(), axes...), &spread{from: x.Shape(), kept: kept, factor: 1}
	})
}

// Mean is the sum over axes divided by the number of elements, which must not be 0.
func Mean(x *autograd.Var, over Axes) *autograd.Var {
	return reduce("mean", x, over, func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node) {
		return t.Reduce(device.Mean, x.DType(), x.Tensor(), axes...), &spread{from: x.Shape(), kept: kept, factor: 1 / float64(count(x.Shape(), axes))}
	})
}

// Max is the largest element over axes; NaN if one is. Elements that tie share
// the gradient evenly. There must be an element.
func Max(x *autograd.Var, over Axes) *autograd.Var { return extremum("max", device.Max, x, over) }

// Min is the smallest element over axes; NaN if one is. Elements that tie share
// the gradient evenly. There must be an element.
func Min(x *autograd.Var, over Axes) *autograd.Var { return extremum("min", device.Min, x, over) }

func extremum(op string, f device.Reduction, x *autograd.Var, over Axes) *autograd.Var {
	return reduce(op, x, over, func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node) {
		out := t.Reduce(f, x.DType(), x.Tensor(), axes...)
		return out, &extreme{x: x.Tensor(), y: out, axes: axes}
	})
}

// Var is the variance over axes: the sum of squared distances from the mean,
// divided by the number of elements less correction (1 for the unbiased
// estimate, 0 for the population), or by 0 if that is negative.
func Var(x *autograd.Var, over Axes, correction int) *autograd.Var {
	return reduce("var", x, over, func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node) {
		d := x.DType()
		div := float64(max(count(x.Shape(), axes)-correction, 0))
		mean := t.Reduce(device.Mean, tensor.Float64, x.Tensor(), axes...)
		dist := t.Binary(device.Sub, d.Wide(), x.Tensor(), mean)
		sq := t.Reduce(device.SumSquares, d.Wide(), dist, axes...)
		out := t.Unary(device.Unary{Func: device.DivScalar, A: div}, d, sq)
		t.Free(dist, sq)
		return out, &variance{x: x.Tensor(), mean: mean, div: div}
	})
}

func count(shape tensor.Shape, axes []int) int {
	n := 1
	for _, a := range axes {
		n *= shape[a]
	}
	return n
}

// reduce runs a reduction whose kernel keeps the folded axes, and drops them if asked to.
func reduce(op string, x *autograd.Var, over Axes, run func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node)) *autograd.Var {
	t, ok := begin(op, x)
	if !ok {
		return t.Dead()
	}
	axes, shape, kept, err := over.resolve(x.Shape())
	if err != nil {
		return t.Fails(err)
	}
	if op != "sum" && x.Tensor().Len() == 0 && kept.Len() > 0 { // the others have no value for nothing
		return fail(t, op, "x", x.Shape().String(), "at least one element to fold", tensor.ErrShape)
	}
	out, n := run(t, axes, kept)
	out = t.Reshape(out, shape...)
	return t.Record(out, n, x)
}

// spread is a sum or mean: each element gets factor times the gradient.
type spread struct {
	from, kept tensor.Shape
	factor     float64
}

func (n *spread) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	g = withKept(s, g, n.kept)
	if n.factor != 1 {
		g = s.Unary(device.Unary{Func: device.MulScalar, A: n.factor}, g.DType(), g)
	}
	return []*tensor.Tensor{s.Expand(g, n.from...)}
}

// withKept gives a gradient its folded axes back, with size 1.
func withKept(s *device.Stream, g *tensor.Tensor, kept tensor.Shape) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	return s.Reshape(g, kept...)
}

type extreme struct {
	x, y *tensor.Tensor
	axes []int
}

func (n *extreme) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	wide := n.x.DType().Wide()
	hit := c.keep(s.Binary(device.Equal, wide, n.x, n.y))
	ties := c.keep(s.Reduce(device.Sum, wide, hit, n.axes...))
	share := c.keep(s.Binary(device.Div, wide, withKept(s, g, n.y.Shape()), ties))
	return []*tensor.Tensor{s.Binary(device.Mul, n.x.DType(), hit, share)}
}

type variance struct {
	x, mean *tensor.Tensor
	div     float64
}

func (n *variance) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	wide := n.x.DType().Wide()
	dist := c.keep(s.Binary(device.Sub, wide, n.x, n.mean))
	factor := c.keep(s.Unary(device.Unary{Func: device.MulScalar, A: 2 / n.div}, wide, withKept(s, g, n.mean.Shape())))
	return []*tensor.Tensor{s.Binary(device.Mul, n.x.DType(), dist, factor)}
}

// LogSumExp is log(sum(exp(x))) over axes, by the largest element so that
// nothing overflows. There must be an element.
func LogSumExp(x *autograd.Var, over Axes) *autograd.Var {
	return reduce("logsumexp", x, over, func(t *autograd.Tape, axes []int, kept tensor.Shape) (*tensor.Tensor, autograd.Node) {
		shifted, top, sum := sumExp(t.Stream, x.Tensor(), axes, largest(x.DType().Wide()))
		log := t.Unary(device.Unary{Func: device.Log}, x.DType().Wide(), sum)
		out := t.Binary(device.Add, x.DType(), log, top)
		t.Free(shifted, log)
		return out, &logSumExpNode{x: x.Tensor(), top: top, sum: sum}
	})
}

// sumExp gives log(sum(exp(x))) over axes, which are kept, in parts whose sum
// would round a large top's neighbours away: it is top + log(sum), where sum is
// that of exp(shifted) and shifted is x - top, in the wide type. There must be
// an element. The top is at most limit: +Inf makes the sum of a row with an
// infinite element NaN, as its softmax is.
func sumExp(s *device.Stream, x *tensor.Tensor, axes []int, limit float64) (shifted, top, sum *tensor.Tensor) {
	wide := x.DType().Wide()
	most := s.Reduce(device.Max, wide, x, axes...)
	// A maximum of -Inf would give Inf - Inf.
	top = s.Unary(device.Unary{Func: device.Clamp, A: -largest(wide), B: limit}, wide, most)
	shifted = s.Binary(device.Sub, wide, x, top)
	e := s.Unary(device.Unary{Func: device.Exp}, wide, shifted)
	sum = s.Reduce(device.Sum, wide, e, axes...)
	s.Free(most, e)
	return shifted, top, sum
}

// logSumExpNode: dx = exp(x - top) g / sum.
type logSumExpNode struct{ x, top, sum *tensor.Tensor }

func (n *logSumExpNode) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	wide := n.x.DType().Wide()
	e := c.keep(s.Unary(device.Unary{Func: device.Exp}, wide, c.keep(s.Binary(device.Sub, wide, n.x, n.top))))
	return []*tensor.Tensor{s.Binary(device.Mul, n.x.DType(), e, c.keep(s.Binary(device.Div, wide, withKept(s, g, n.sum.Shape()), n.sum)))}
}

// largest is the largest finite number of a wide type.
func largest(d tensor.DType) float64 {
	if d == tensor.Float32 {
		return math.MaxFloat32
	}
	return math.MaxFloat64
}
