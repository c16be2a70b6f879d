package ops

import (
	"context"
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Softmax is exp(x) / sum(exp(x)) along an axis, computed by the largest
// element so that nothing overflows.
func Softmax(x *autograd.Var, axis int) *autograd.Var {
	t, a, ok := beginAxis("softmax", x, axis)
	if !ok {
		return t.Dead()
	}
	if y := fusedSoftmax(t, x, a, false); y != nil {
		return y
	}
	y := softmax(t.Stream, x.Tensor(), a)
	out := y
	if x.DType() != y.DType() {
		out = t.Copy(x.DType(), y)
	}
	return t.Record(out, &softmaxNode{y: y, axis: a, dtype: x.DType()}, x)
}

func beginAxis(op string, x *autograd.Var, axis int) (*autograd.Tape, int, bool) {
	t, ok := begin(op, x)
	if !ok {
		return t, 0, false
	}
	a, err := x.Shape().Axis(axis)
	t.Fail(err)
	return t, a, err == nil
}

// fusedSoftmax is the softmax along an axis, or its logarithm, as the device's
// fused kernel; nil where there is none or it declines.
func fusedSoftmax(t *autograd.Tape, x *autograd.Var, axis int, log bool) *autograd.Var {
	dev, ok := t.Device().(device.Softmax)
	if !ok || x.Tensor().Dim(axis) == 0 {
		return nil
	}
	n := softmaxes.of(wholeSoftmax{axis: axis, log: log})
	if n.x = n.last(t.Stream, x.Tensor()); t.Err() != nil {
		return t.Dead()
	}
	var sizes [tensor.MaxRank]int
	pair := append(sizes[:0], n.x.Shape()...)
	pair[len(pair)-1] = 2
	y := t.Empty(x.DType(), x.Shape()...)
	rows := n.last(t.Stream, y)
	n.stats = t.Empty(tensor.Float64, pair...)
	if t.Try(func(ctx context.Context, _ device.Device) error {
		return dev.SoftmaxForward(ctx, rows, n.stats, n.x, log)
	}) {
		t.Free(y, n.stats)
		return nil
	}
	return t.Record(y, n, x)
}

// wholeSoftmax is the fused softmax or its logarithm; see device.Softmax.
type wholeSoftmax struct {
	room
	x     *tensor.Tensor // the axis last
	stats *tensor.Tensor // (...,2) in float64
	axis  int
	log   bool
}

// last is a tensor with the axis in the place of the last one.
func (n *wholeSoftmax) last(s *device.Stream, x *tensor.Tensor) *tensor.Tensor {
	if n.axis == x.Rank()-1 {
		return x
	}
	return s.Transpose(x, n.axis, -1)
}

var softmaxes nodes[wholeSoftmax]

func (n *wholeSoftmax) Done() { softmaxes.done(n) }

func (n *wholeSoftmax) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	dx := s.Empty(n.x.DType(), g.Shape()...)
	rows, grad := n.last(s, dx), n.last(s, g)
	s.Run(func(ctx context.Context, dev device.Device) error {
		return dev.(device.Softmax).SoftmaxBackward(ctx, rows, grad, n.x, n.stats, n.log)
	})
	return n.give(dx)
}

// softmax is in the wide type. Along an axis without elements it is empty.
func softmax(s *device.Stream, x *tensor.Tensor, axis int) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	wide := x.DType().Wide()
	if x.Len() == 0 {
		return s.Empty(wide, x.Shape()...)
	}
	c := scratch{s: s}
	defer c.done()
	top := c.keep(s.Reduce(device.Max, wide, x, axis))
	e := c.keep(s.Unary(device.Unary{Func: device.Exp}, wide, c.keep(s.Binary(device.Sub, wide, x, top))))
	sum := c.keep(s.Reduce(device.Sum, wide, e, axis))
	return s.Binary(device.Div, wide, e, sum)
}

// softmaxNode: dx = y (g - sum(g y)) along the axis.
type softmaxNode struct {
	y     *tensor.Tensor // the result in the wide type
	axis  int
	dtype tensor.DType
}

func (n *softmaxNode) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{softmaxGrad(s, n.dtype, g, n.y, n.axis)}
}

func softmaxGrad(s *device.Stream, dtype tensor.DType, g, y *tensor.Tensor, axis int) *tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	wide := y.DType()
	dot := c.keep(s.Reduce(device.Sum, wide, c.keep(s.Binary(device.Mul, wide, g, y)), axis))
	return s.Binary(device.Mul, dtype, c.keep(s.Binary(device.Sub, wide, g, dot)), y)
}

// LogSoftmax is x - log(sum(exp(x))) along an axis.
func LogSoftmax(x *autograd.Var, axis int) *autograd.Var {
	t, a, ok := beginAxis("log-softmax", x, axis)
	if !ok {
		return t.Dead()
	}
	if y := fusedSoftmax(t, x, a, true); y != nil {
		return y
	}
	if x.Tensor().Len() == 0 {
		return t.Record(t.Empty(x.DType(), x.Shape()...), &logSoftmax{x: x.Tensor()}, x)
	}
	shifted, top, sum := sumExp(t.Stream, x.Tensor(), []int{a}, math.Inf(1))
	log := t.Unary(device.Unary{Func: device.Log}, x.DType().Wide(), sum)
	out := t.Binary(device.Sub, x.DType(), shifted, log)
	t.Free(shifted, log)
	return t.Record(out, &logSoftmax{x: x.Tensor(), top: top, sum: sum, axis: a}, x)
}

// logSoftmax: dx = g - exp(x - top) sum(g) / sum along the axis; see sumExp.
type logSoftmax struct {
	x, top, sum *tensor.Tensor
	axis        int
}

func (n *logSoftmax) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	if n.x.Len() == 0 {
		return []*tensor.Tensor{g}
	}
	c := scratch{s: s}
	defer c.done()
	wide := n.sum.DType()
	factor := c.keep(s.Binary(device.Div, wide, c.keep(s.Reduce(device.Sum, wide, g, n.axis)), n.sum))
	e := c.keep(s.Unary(device.Unary{Func: device.Exp}, wide, c.keep(s.Binary(device.Sub, wide, n.x, n.top))))
	return []*tensor.Tensor{s.Binary(device.Sub, n.x.DType(), g, c.keep(s.Binary(device.Mul, wide, e, factor)))}
}
