package ops

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

// RotaryEmbedding turns each pair (x[i], x[i+D/2]) of the last axis, D even, by
// the angle (start + t) * base^(-2i/D), where t is the index of the axis before
// it: x is (...,T,D). Pairs are halves, as in Llama and GPT-NeoX (Su et al.,
// "RoFormer", 2021). base is positive and finite.
func RotaryEmbedding(x *autograd.Var, base float64, start int) *autograd.Var {
	const op = "rotary embedding"
	t, ok := begin(op, x)
	if !ok {
		return t.Dead()
	}
	in := x.Tensor()
	if in.Rank() < 2 || in.Dim(-1)%2 != 0 {
		return fail(t, op, "x", in.Shape().String(), "(...,T,D) with an even D", tensor.ErrShape)
	}
	if !(base > 0) || math.IsInf(base, 0) {
		return fail(t, op, "base", number(base), "a positive finite number", tensor.ErrValue)
	}
	if in.Len() == 0 { // whatever its other axes are
		return t.Record(t.Copy(x.DType(), in), &unchanged{}, x)
	}
	steps := in.Dim(-2)
	if start > 1<<53-steps || start < -1<<53 {
		return fail(t, op, "start", fmt.Sprint(start), "a position that float64 holds", tensor.ErrValue)
	}
	if !fits(t, op, "x", in.Shape(), steps, in.Dim(-1), 8) {
		return t.Dead()
	}
	n := rotaries.of(rotary{})
	n.cos, n.sin = rotaryTable(t, angles{x.DType().Wide(), in.Dim(-2), in.Dim(-1), base, start})
	return t.Record(rotate(t.Stream, in, n.cos, n.sin, false), n, x)
}

// unchanged is a node whose gradient is that of its result.
type unchanged struct{}

func (*unchanged) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{g}
}

// angles are those of the places of a rotary embedding, start and the T-1 that follow.
type angles struct {
	dtype        tensor.DType // of the cosines and sines
	steps, width int          // T, D
	base         float64
	start        int
}

// A model asks for the same angles in each layer and step, so the last few tables
// are kept, those of at most angleLimit numbers.
var angleTables struct {
	sync.Mutex
	last []angleTable // the latest first
}

type angleTable struct {
	of       angles
	cos, sin *tensor.Tensor // (T,D/2) on the host; never written
}

const (
	angleTablesKept = 4
	angleLimit      = 1 << 21
)

// rotaryTable is the cosines and sines of the angles, (T,D/2) each.
func rotaryTable(t *autograd.Tape, of angles) (cos, sin *tensor.Tensor) {
	c, s := of.kept()
	if c == nil {
		if c, s = of.table(t); c == nil {
			return nil, nil
		}
		of.keep(c, s)
	}
	return t.Upload(c), t.Upload(s)
}

func (a angles) kept() (cos, sin *tensor.Tensor) {
	angleTables.Lock()
	defer angleTables.Unlock()
	for _, x := range angleTables.last {
		if x.of == a {
			return x.cos, x.sin
		}
	}
	return nil, nil
}

func (a angles) keep(cos, sin *tensor.Tensor) {
	if 2*cos.Len() > angleLimit {
		return
	}
	angleTables.Lock()
	defer angleTables.Unlock()
	last := append([]angleTable{{a, cos, sin}}, angleTables.last...)
	angleTables.last = last[:min(len(last), angleTablesKept)]
}

// table computes them; nil after a failure.
func (a angles) table(t *autograd.Tape) (cos, sin *tensor.Tensor) {
	half := a.width / 2
	c, s := make([]float64, a.steps*half), make([]float64, a.steps*half)
	for i := range half {
		freq := elementary.Pow(a.base, -2*float64(i)/float64(a.width))
		for p := range a.steps {
			if stopped(t, p) {
				return nil, nil
			}
			angle := float64(a.start+p) * freq
			s[p*half+i], c[p*half+i] = elementary.Sin(angle), elementary.Cos(angle)
		}
	}
	cos, err := tensor.FromFloat64s(a.dtype, c, a.steps, half)
	if err == nil {
		sin, err = tensor.FromFloat64s(a.dtype, s, a.steps, half)
	}
	if err != nil {
		t.Fail(err)
		return nil, nil
	}
	return cos, sin
}

// rotate turns forward, or back by the same angles.
func rotate(s *device.Stream, x, cos, sin *tensor.Tensor, back bool) *tensor.Tensor {
	out := s.Empty(x.DType(), x.Shape()...)
	if s.Err() != nil {
		return nil
	}
	if dev, ok := s.Device().(device.Rotary); ok {
		if !s.Try(func(ctx context.Context, _ device.Device) error { return dev.RotateHalves(ctx, out, x, cos, sin, back) }) {
			return out
		}
	}
	c := scratch{s: s}
	defer c.done()
	d, wide := x.Dim(-1), x.DType().Wide()
	half := func(t *tensor.Tensor, i int) *tensor.Tensor {
		return s.View(func() (*tensor.Tensor, error) { return t.Slice(-1, i*d/2, (i+1)*d/2) })
	}
	a, b := half(x, 0), half(x, 1)
	minus, plus := device.Sub, device.Add
	if back {
		minus, plus = plus, minus
	}
	mul := func(x, y *tensor.Tensor) *tensor.Tensor { return c.keep(s.Binary(device.Mul, wide, x, y)) }
	copyInto(s, half(out, 0), c.keep(s.Binary(minus, wide, mul(a, cos), mul(b, sin))))
	copyInto(s, half(out, 1), c.keep(s.Binary(plus, wide, mul(b, cos), mul(a, sin))))
	return out
}

type rotary struct {
	room
	cos, sin *tensor.Tensor
}

var rotaries nodes[rotary]

func (n *rotary) Done() { rotaries.done(n) }

func (n *rotary) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.give(rotate(s, g, n.cos, n.sin, true))
}
