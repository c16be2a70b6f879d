package ops

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// MatMul is the matrix product of a (...,M,K) and b (...,K,N), accumulated in
// the wide type; leading axes are broadcast. An operand of one axis is a vector
// whose missing axis the result does not have. Transposed operands are read by
// their strides, without a copy.
func MatMul(a, b *autograd.Var) *autograd.Var {
	t, ok := begin("matmul", a, b)
	if !ok {
		return t.Dead()
	}
	x, y := a.Tensor(), b.Tensor()
	if x.Rank() == 0 || y.Rank() == 0 {
		return fail(t, "matmul", "operands", fmt.Sprintf("%v and %v", x.Shape(), y.Shape()), "at least one axis each", tensor.ErrRank)
	}
	if x.Rank() == 1 {
		if y.Rank() == 1 {
			return Squeeze(Squeeze(MatMul(Unsqueeze(a, 0), Unsqueeze(b, 1)), 1), 0)
		}
		return Squeeze(MatMul(Unsqueeze(a, 0), b), -2)
	}
	if y.Rank() == 1 {
		return Squeeze(MatMul(a, Unsqueeze(b, 1)), -1)
	}
	if x.Dim(-1) != y.Dim(-2) {
		return fail(t, "matmul", "operands", fmt.Sprintf("%v and %v", x.Shape(), y.Shape()), "equal inner sizes", tensor.ErrShape)
	}
	return t.Record(t.MatMul(a.DType(), x, y), matMuls.of(matMul{a: x, b: y}), a, b)
}

type matMul struct {
	room
	a, b *tensor.Tensor
}

var matMuls nodes[matMul]

func (n *matMul) Done() { matMuls.done(n) }

func (n *matMul) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := n.give(nil, nil)
	if want[0] {
		out[0] = matMulTo(s, g, transposed(s, n.b), n.a)
	}
	if want[1] {
		out[1] = matMulTo(s, transposed(s, n.a), g, n.b)
	}
	return out
}

func transposed(s *device.Stream, t *tensor.Tensor) *tensor.Tensor {
	return s.Transpose(t, -1, -2)
}

// matMulTo is a product summed to the shape of like, whose leading axes may have been broadcast.
func matMulTo(s *device.Stream, a, b, like *tensor.Tensor) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	batch, err := tensor.Broadcast(a.Shape()[:a.Rank()-2], b.Shape()[:b.Rank()-2])
	if err != nil {
		s.Fail(err)
		return nil
	}
	if batch.Equal(like.Shape()[:like.Rank()-2]) {
		return s.MatMul(like.DType(), a, b)
	}
	full := s.MatMul(like.DType().Wide(), a, b)
	defer s.Free(full)
	return s.ReduceTo(like.DType(), full, like.Shape())
}

// Linear is x W^T + bias for x (...,in), weight (out,in) and bias: (out), one
// element for all, or nil. A weight (in) is one row whose axis the result does not have.
func Linear(x, weight, bias *autograd.Var) *autograd.Var {
	t, ok := begin("linear", x, weight)
	if !ok || !sameDType(t, "linear", "bias", x.DType(), bias) {
		return t.Dead()
	}
	if t, ok = autograd.Begin("linear", x, weight, bias); !ok {
		return t.Dead()
	}
	in, w := x.Tensor(), weight.Tensor()
	if w.Rank() != 2 && w.Rank() != 1 {
		return fail(t, "linear", "weight", w.Shape().String(), "(out,in)", tensor.ErrRank)
	}
	if in.Rank() == 0 || in.Dim(-1) != w.Dim(-1) {
		return fail(t, "linear", "x", in.Shape().String(), fmt.Sprintf("(...,%d)", w.Dim(-1)), tensor.ErrShape)
	}
	if w.Rank() == 1 { // a weight of one row gives no last axis
		if bias != nil && bias.Tensor().Len() != 1 {
			return fail(t, "linear", "bias", bias.Shape().String(), "one element", tensor.ErrShape)
		}
		if bias != nil {
			bias = Reshape(bias, 1)
		}
		return Squeeze(Linear(x, Unsqueeze(weight, 0), bias), -1)
	}
	if bias != nil && !bias.Shape().Equal(tensor.Shape{w.Dim(0)}) && bias.Tensor().Len() != 1 {
		return fail(t, "linear", "bias", bias.Shape().String(), fmt.Sprintf("(%d)", w.Dim(0)), tensor.ErrShape)
	}
	d := x.DType()
	rows := rows(t.Stream, in)
	y := linearForward(t.Stream, d, rows, transposed(t.Stream, w), bias.Tensor())
	var sizes [tensor.MaxRank]int
	shape := append(append(sizes[:0], in.Shape()[:in.Rank()-1]...), w.Dim(0))
	out := t.Reshape(y, shape...)
	n := linears.of(linear{rows: rows, w: w, in: in.Shape()})
	if bias != nil {
		n.bias = bias.Shape()
	}
	return t.Record(out, n, x, weight, bias)
}

// linearForward is x w + bias as d, rounded once; bias may be nil or one element.
func linearForward(s *device.Stream, d tensor.DType, x, w, bias *tensor.Tensor) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	if bias == nil {
		return s.MatMul(d, x, w)
	}
	if dev, ok := s.Device().(device.MatMulBias); ok && bias.Rank() == 1 && bias.Dim(0) == w.Dim(1) {
		out := s.Empty(d, x.Dim(0), w.Dim(1))
		if !s.Try(func(ctx context.Context, _ device.Device) error { return dev.MatMulBias(ctx, out, x, w, bias) }) {
			return out
		}
		s.Free(out)
	}
	y := s.MatMul(d.Wide(), x, w)
	defer s.Free(y)
	return s.Binary(device.Add, d, y, bias)
}

// rows is a tensor (...,D) as the matrix (n,D).
func rows(s *device.Stream, x *tensor.Tensor) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	n := x.Shape()[:x.Rank()-1].Len()
	return s.Reshape(x, n, x.Dim(-1))
}

type linear struct {
	room
	rows, w  *tensor.Tensor // (n,in), (out,in)
	in, bias tensor.Shape
}

var linears nodes[linear]

func (n *linear) Done() { linears.done(n) }

func (n *linear) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	gr := rows(s, g)
	out := n.give(nil, nil, nil)
	if want[0] {
		dx := s.MatMul(n.w.DType(), gr, n.w)
		out[0] = s.Reshape(dx, n.in...)
	}
	if want[1] {
		out[1] = s.MatMul(n.w.DType(), transposed(s, gr), n.rows)
	}
	if want[2] {
		out[2] = s.ReduceTo(n.w.DType(), gr, n.bias)
	}
	return out
}
