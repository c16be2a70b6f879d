package ops

import (
	"fmt"
	"slices"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Cast converts to another dtype, rounding once to nearest even. The gradient
// is converted back. From a floating-point type to an integer is refused;
// an int64 that int32 cannot hold keeps its lower 32 bits.
func Cast(x *autograd.Var, dtype tensor.DType) *autograd.Var {
	t, ok := autograd.Begin("cast", x)
	if !ok {
		return t.Dead()
	}
	if !dtype.Valid() {
		return fail(t, "cast", "dtype", dtype.String(), "a valid type", tensor.ErrDType)
	}
	return t.Record(t.Copy(dtype, x.Tensor()), casts.of(cast{from: x.DType()}), x)
}

type cast struct {
	room
	from tensor.DType
}

var casts nodes[cast]

func (n *cast) Done() { casts.done(n) }

func (n *cast) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.give(s.Copy(n.from, g))
}

// Reshape is the same elements in row-major order under another shape; one
// size may be -1. It copies only where the strides allow no view.
func Reshape(x *autograd.Var, shape ...int) *autograd.Var {
	t, ok := autograd.Begin("reshape", x)
	if !ok {
		return t.Dead()
	}
	return t.Record(t.Reshape(x.Tensor(), shape...), reshapes.of(reshaped{from: x.Shape()}), x)
}

type reshaped struct {
	room
	from tensor.Shape
}

var reshapes nodes[reshaped]

func (n *reshaped) Done() { reshapes.done(n) }

func (n *reshaped) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.give(s.Reshape(g, n.from...))
}

// view records a view of x whose gradient is the view back of its own gradient.
func view(op string, x *autograd.Var, forth, back func(*tensor.Tensor) (*tensor.Tensor, error)) *autograd.Var {
	t, ok := autograd.Begin(op, x)
	if !ok {
		return t.Dead()
	}
	out := t.View(func() (*tensor.Tensor, error) { return forth(x.Tensor()) })
	return t.Record(out, &viewed{back: back}, x)
}

type viewed struct {
	back func(*tensor.Tensor) (*tensor.Tensor, error)
}

func (n *viewed) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{s.View(func() (*tensor.Tensor, error) { return n.back(g) })}
}

// Permute orders the axes anew: axis i of the result is axis axes[i] of x.
func Permute(x *autograd.Var, axes ...int) *autograd.Var {
	axes = slices.Clone(axes) // the backward reads them
	return view("permute", x,
		func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Permute(axes...) },
		func(g *tensor.Tensor) (*tensor.Tensor, error) {
			inverse := make([]int, len(axes))
			for i, a := range axes {
				if a < 0 {
					a += len(axes)
				}
				inverse[a] = i
			}
			return g.Permute(inverse...)
		})
}

// Transpose exchanges two axes.
func Transpose(x *autograd.Var, axis0, axis1 int) *autograd.Var {
	t, ok := autograd.Begin("transpose", x)
	if !ok {
		return t.Dead()
	}
	return t.Record(t.Transpose(x.Tensor(), axis0, axis1), exchanges.of(exchanged{axis0: axis0, axis1: axis1}), x)
}

type exchanged struct {
	room
	axis0, axis1 int
}

var exchanges nodes[exchanged]

func (n *exchanged) Done() { exchanges.done(n) }

func (n *exchanged) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.give(s.Transpose(g, n.axis0, n.axis1))
}

// Squeeze drops an axis of size 1.
func Squeeze(x *autograd.Var, axis int) *autograd.Var {
	return view("squeeze", x,
		func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Squeeze(axis) },
		func(g *tensor.Tensor) (*tensor.Tensor, error) { return g.Unsqueeze(axis) })
}

// Unsqueeze inserts an axis of size 1, which becomes the given axis of the result.
func Unsqueeze(x *autograd.Var, axis int) *autograd.Var {
	return view("unsqueeze", x,
		func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Unsqueeze(axis) },
		func(g *tensor.Tensor) (*tensor.Tensor, error) { return g.Squeeze(axis) })
}

// Expand repeats axes of size 1, and adds axes in front, without copying.
func Expand(x *autograd.Var, shape ...int) *autograd.Var {
	t, ok := autograd.Begin("expand", x)
	if !ok {
		return t.Dead()
	}
	out := t.Expand(x.Tensor(), shape...)
	return t.Record(out, &expanded{from: x.Shape(), dtype: x.DType()}, x)
}

type expanded struct {
	from  tensor.Shape
	dtype tensor.DType
}

func (n *expanded) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{reduceTo(s, n.dtype, g, n.from)}
}

// Slice keeps the indices start <= i < end of an axis, as a view.
func Slice(x *autograd.Var, axis, start, end int) *autograd.Var {
	return part("slice", x, func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Slice(axis, start, end) })
}

// Select takes one index of an axis and drops the axis, as a view; -1 is the last index.
func Select(x *autograd.Var, axis, index int) *autograd.Var {
	return part("select", x, func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Select(axis, index) })
}

// part records a view that leaves elements of x out.
func part(op string, x *autograd.Var, take func(*tensor.Tensor) (*tensor.Tensor, error)) *autograd.Var {
	t, ok := autograd.Begin(op, x)
	if !ok {
		return t.Dead()
	}
	out := t.View(func() (*tensor.Tensor, error) { return take(x.Tensor()) })
	return t.Record(out, &parted{take: take, from: x.Shape()}, x)
}

type parted struct {
	take func(*tensor.Tensor) (*tensor.Tensor, error)
	from tensor.Shape
}

func (n *parted) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := s.Full(g.DType(), 0, n.from...)
	hole := s.View(func() (*tensor.Tensor, error) { return n.take(out) })
	copyInto(s, hole, g)
	return []*tensor.Tensor{out}
}

// Concat joins tensors of one rank along an axis; the other axes are equal.
// Tensors of shape (0) are left out, whatever the rank of the others.
func Concat(axis int, xs ...*autograd.Var) *autograd.Var {
	t, ok := begin("concat", xs...)
	if !ok {
		return t.Dead()
	}
	first := 0
	for first < len(xs)-1 && isNothing(xs[first]) {
		first++
	}
	like := xs[first].Shape()
	a, err := like.Axis(axis)
	if err != nil {
		return t.Fails(err)
	}
	shape := append(tensor.Shape{}, like...)
	shape[a] = 0
	n := &concat{axis: a}
	for i, x := range xs {
		if isNothing(x) && len(like) != 1 {
			n.sizes = append(n.sizes, -1)
			continue
		}
		fits := x.Tensor().Rank() == len(like)
		for j := 0; fits && j < len(like); j++ {
			fits = j == a || x.Tensor().Dim(j) == like[j]
		}
		if !fits {
			return fail(t, "concat", operand(i), x.Shape().String(), fmt.Sprintf("%v but for axis %d", like, a), tensor.ErrShape)
		}
		n.sizes = append(n.sizes, x.Tensor().Dim(a))
		shape[a] += x.Tensor().Dim(a)
	}
	out := t.Empty(xs[0].DType(), shape...)
	at := 0
	for i, x := range xs {
		if n.sizes[i] < 0 {
			continue
		}
		hole := t.View(func() (*tensor.Tensor, error) { return out.Slice(a, at, at+n.sizes[i]) })
		copyInto(t.Stream, hole, x.Tensor())
		at += n.sizes[i]
	}
	return t.Record(out, n, xs...)
}

func isNothing(x *autograd.Var) bool { return x.Tensor().Rank() == 1 && x.Tensor().Len() == 0 }

type concat struct {
	axis  int
	sizes []int // -1: left out
}

func (n *concat) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(n.sizes))
	at := 0
	for i, size := range n.sizes {
		switch {
		case size < 0:
			if want[i] {
				out[i] = s.Full(g.DType(), 0, 0)
			}
			continue
		case want[i]:
			out[i] = s.View(func() (*tensor.Tensor, error) { return g.Slice(n.axis, at, at+size) })
		}
		at += size
	}
	return out
}

// Stack joins tensors of one shape along a new axis.
func Stack(axis int, xs ...*autograd.Var) *autograd.Var {
	t, ok := begin("stack", xs...)
	if !ok {
		return t.Dead()
	}
	like := xs[0].Tensor()
	for i, x := range xs {
		if !x.Shape().Equal(like.Shape()) {
			return fail(t, "stack", operand(i), x.Shape().String(), like.Shape().String(), tensor.ErrShape)
		}
	}
	one, err := like.Unsqueeze(axis)
	if err != nil {
		return t.Fails(err)
	}
	a, _ := one.Shape().Axis(axis)
	shape := append(tensor.Shape{}, one.Shape()...)
	shape[a] = len(xs)
	out := t.Empty(like.DType(), shape...)
	for i, x := range xs {
		hole := t.View(func() (*tensor.Tensor, error) { return out.Select(a, i) })
		copyInto(t.Stream, hole, x.Tensor())
	}
	return t.Record(out, &stack{axis: a}, xs...)
}

type stack struct{ axis int }

func (n *stack) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(want))
	for i := range want {
		if want[i] {
			out[i] = s.View(func() (*tensor.Tensor, error) { return g.Select(n.axis, i) })
		}
	}
	return out
}

// Where is a where cond is not 0 and b elsewhere, all broadcast. cond is an integer tensor.
func Where(cond, a, b *autograd.Var) *autograd.Var {
	t, ok := beginMasked("where", "cond", cond, a, b)
	if !ok {
		return t.Dead()
	}
	out := t.Where(a.DType(), cond.Tensor(), a.Tensor(), b.Tensor())
	return t.Record(out, &where{cond: cond.Tensor(), a: a.Shape(), b: b.Shape(), dtype: a.DType()}, cond, a, b)
}

// beginMasked starts an operation with an integer operand besides the floating-point ones.
func beginMasked(op, name string, mask *autograd.Var, xs ...*autograd.Var) (*autograd.Tape, bool) {
	var all [4]*autograd.Var // at most
	t, ok := autograd.Begin(op, append(append(all[:0], mask), xs...)...)
	if !ok || !required(t, op, xs...) {
		return t, false
	}
	if mask != nil && mask.DType().IsInt() {
		return t, true
	}
	wrong := &tensor.ArgError{Op: op, Arg: name, Got: "nil", Want: "an int32 or int64 tensor", Kind: tensor.ErrMissing}
	if mask != nil {
		wrong.Got, wrong.Kind = mask.DType().String(), tensor.ErrDType
	}
	t.Fail(wrong)
	return t, false
}

type where struct {
	cond  *tensor.Tensor
	a, b  tensor.Shape
	dtype tensor.DType
}

func (n *where) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	zero := s.Full(n.dtype, 0)
	defer s.Free(zero)
	side := func(a, b *tensor.Tensor, shape tensor.Shape) *tensor.Tensor {
		x := s.Where(n.dtype, n.cond, a, b)
		if x.Shape().Equal(shape) {
			return x
		}
		defer s.Free(x)
		return s.ReduceTo(n.dtype, x, shape)
	}
	out := make([]*tensor.Tensor, 3)
	if want[1] {
		out[1] = side(g, zero, n.a)
	}
	if want[2] {
		out[2] = side(zero, g, n.b)
	}
	return out
}

// MaskedFill is value where mask is not 0 and x elsewhere; the mask is an
// integer tensor and both are broadcast.
func MaskedFill(x, mask *autograd.Var, value float64) *autograd.Var {
	t, ok := beginMasked("masked fill", "mask", mask, x)
	if !ok {
		return t.Dead()
	}
	fill := t.Full(x.DType(), value)
	out := t.Where(x.DType(), mask.Tensor(), fill, x.Tensor())
	t.Free(fill)
	return t.Record(out, &where{cond: mask.Tensor(), b: x.Shape(), dtype: x.DType()}, mask, nil, x)
}
