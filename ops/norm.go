package ops

import (
	"context"
	"fmt"
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// RMSNorm is x / sqrt(mean(x^2) + eps) * weight over the last axis, of size D
// (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). weight is
// (D) or nil; eps is finite and not negative.
func RMSNorm(x, weight *autograd.Var, eps float64) *autograd.Var {
	return norm("rms norm", x, weight, nil, eps, false)
}

// LayerNorm is (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last
// axis, of size D, with the population variance (Ba et al., 2016). weight and
// bias are (D) or nil; eps is finite and not negative.
func LayerNorm(x, weight, bias *autograd.Var, eps float64) *autograd.Var {
	return norm("layer norm", x, weight, bias, eps, true)
}

func norm(op string, x, weight, bias *autograd.Var, eps float64, center bool) *autograd.Var {
	t, ok := autograd.Begin(op, x, weight, bias)
	if !ok || !required(t, op, x) || !sameDType(t, op, "weight", x.DType(), weight) || !sameDType(t, op, "bias", x.DType(), bias) {
		return t.Dead()
	}
	in := x.Tensor()
	if in.Rank() == 0 {
		return fail(t, op, "x", in.Shape().String(), "at least one axis", tensor.ErrRank)
	}
	for _, p := range []struct {
		name string
		v    *autograd.Var
	}{{"weight", weight}, {"bias", bias}} {
		if p.v != nil && !p.v.Shape().Equal(in.Shape()[in.Rank()-1:]) {
			return fail(t, op, p.name, p.v.Shape().String(), fmt.Sprintf("(%d)", in.Dim(-1)), tensor.ErrShape)
		}
	}
	if !(eps >= 0) || math.IsInf(eps, 0) {
		return fail(t, op, "eps", number(eps), "a finite number of at least 0", tensor.ErrValue)
	}
	if in.Dim(-1) == 0 {
		return fail(t, op, "x", in.Shape().String(), "a last axis of at least 1", tensor.ErrShape)
	}
	if y := fusedNorm(t, x, weight, bias, eps, center); y != nil {
		return y
	}
	d, wide := x.DType(), x.DType().Wide()
	c := scratch{s: t.Stream}
	n := &normNode{x: in, weight: weight.Tensor()}
	dist := in
	if center {
		n.mean = t.Reduce(device.Mean, tensor.Float64, in, -1)
		dist = c.keep(t.Binary(device.Sub, wide, in, n.mean))
	}
	n.rstd = rstd(&c, dist, eps)
	last := func(more bool) tensor.DType { // the dtype of a stage: rounded only at the end
		if more {
			return wide
		}
		return d
	}
	y := t.Binary(device.Mul, last(weight != nil || bias != nil), dist, n.rstd)
	if weight != nil {
		y = t.Binary(device.Mul, last(bias != nil), c.keep(y), weight.Tensor())
	}
	if bias != nil {
		y = t.Binary(device.Add, d, c.keep(y), bias.Tensor())
	}
	c.done()
	return t.Record(y, n, x, weight, bias)
}

// fusedNorm is a norm as the device's fused kernel; nil where there is none or it declines.
func fusedNorm(t *autograd.Tape, x, weight, bias *autograd.Var, eps float64, center bool) *autograd.Var {
	dev, ok := t.Device().(device.Norm)
	if !ok {
		return nil
	}
	n := wholeNorms.of(wholeNorm{args: device.NormArgs{X: x.Tensor(), Weight: weight.Tensor(), Bias: bias.Tensor(), Eps: eps, Center: center}})
	var sizes [tensor.MaxRank]int
	kept := append(sizes[:0], x.Shape()...)
	kept[len(kept)-1] = 1
	y := t.Empty(x.DType(), x.Shape()...)
	n.rstd = t.Empty(tensor.Float64, kept...)
	if center {
		n.mean = t.Empty(tensor.Float64, kept...)
	}
	if t.Try(func(ctx context.Context, _ device.Device) error {
		return dev.NormForward(ctx, &n.args, y, n.mean, n.rstd)
	}) {
		t.Free(y, n.rstd, n.mean)
		return nil
	}
	return t.Record(y, n, x, weight, bias)
}

type wholeNorm struct {
	room
	args       device.NormArgs
	mean, rstd *tensor.Tensor // (...,1) in float64; mean nil for RMSNorm
}

var wholeNorms nodes[wholeNorm]

func (n *wholeNorm) Done() { wholeNorms.done(n) }

func (n *wholeNorm) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := n.give(nil, nil, nil)
	for i, x := range []*tensor.Tensor{n.args.X, n.args.Weight, n.args.Bias} {
		if want[i] {
			out[i] = s.Empty(x.DType(), x.Shape()...)
		}
	}
	s.Run(func(ctx context.Context, dev device.Device) error {
		return dev.(device.Norm).NormBackward(ctx, &n.args, n.mean, n.rstd, g, out[0], out[1], out[2])
	})
	return out
}

// rstd is 1 / sqrt(mean(x^2) + eps) over the last axis, in float64, where the
// square of no narrower number over- or underflows. Rows of float64 are divided
// by their largest element, or by the root of eps if that is larger.
func rstd(c *scratch, x *tensor.Tensor, eps float64) *tensor.Tensor {
	s := c.s
	f64 := func(f device.Unary, x *tensor.Tensor) *tensor.Tensor { return s.Unary(f, tensor.Float64, x) }
	over := func(a, b *tensor.Tensor) *tensor.Tensor { return c.keep(s.Binary(device.Div, tensor.Float64, a, b)) }
	if x.DType() != tensor.Float64 {
		ms := c.keep(s.Reduce(device.MeanSquare, tensor.Float64, x, -1))
		return f64(device.Unary{Func: device.Rsqrt}, c.keep(f64(device.Unary{Func: device.AddScalar, A: eps}, ms)))
	}
	top := c.keep(s.Reduce(device.Max, tensor.Float64, c.keep(f64(device.Unary{Func: device.Abs}, x)), -1))
	least := math.Sqrt(eps)
	if least == 0 {
		least = math.SmallestNonzeroFloat64
	}
	top = c.keep(f64(device.Unary{Func: device.Clamp, A: least, B: math.MaxFloat64}, top))
	ms := c.keep(s.Reduce(device.MeanSquare, tensor.Float64, over(x, top), -1))
	root := over(c.keep(s.Full(tensor.Float64, math.Sqrt(eps))), top)
	ms = c.keep(s.Binary(device.Add, tensor.Float64, ms, c.keep(f64(device.Unary{Func: device.Square}, root))))
	return s.Binary(device.Div, tensor.Float64, c.keep(f64(device.Unary{Func: device.Rsqrt}, ms)), top)
}

// normNode, with xh = (x - mean) rstd and gw = g weight:
// dx = rstd (gw - mean(gw) - xh mean(gw xh)), the first mean only where x was
// centred; dweight = sum(g xh); dbias = sum(g).
type normNode struct {
	x, weight  *tensor.Tensor // weight may be nil
	mean, rstd *tensor.Tensor // (...,1) in float64; mean nil for RMSNorm
}

func (n *normNode) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	d, wide := n.x.DType(), n.x.DType().Wide()
	out := make([]*tensor.Tensor, 3)
	xh := n.x
	if n.mean != nil {
		xh = c.keep(s.Binary(device.Sub, wide, xh, n.mean))
	}
	xh = c.keep(s.Binary(device.Mul, wide, xh, n.rstd))
	if want[0] {
		gw := g
		if n.weight != nil {
			gw = c.keep(s.Binary(device.Mul, wide, g, n.weight))
		}
		along := c.keep(s.Reduce(device.Mean, wide, c.keep(s.Binary(device.Mul, wide, gw, xh)), -1))
		dx := c.keep(s.Binary(device.Sub, wide, gw, c.keep(s.Binary(device.Mul, wide, xh, along))))
		if n.mean != nil {
			dx = c.keep(s.Binary(device.Sub, wide, dx, c.keep(s.Reduce(device.Mean, wide, gw, -1))))
		}
		out[0] = s.Binary(device.Mul, d, dx, n.rstd)
	}
	last := n.x.Shape()[n.x.Rank()-1:]
	if want[1] {
		out[1] = s.ReduceTo(d, c.keep(s.Binary(device.Mul, wide, g, xh)), last)
	}
	if want[2] {
		out[2] = s.ReduceTo(d, g, last)
	}
	return out
}
