package autograd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Each gradient may be written to without another one, or the seed, changing.
func TestGradientsHaveTheirOwnMemory(t *testing.T) {
	for name, f := range map[string]func(a, b *autograd.Var) *autograd.Var{
		"the same for both":   ops.Add,
		"views of one":        func(a, b *autograd.Var) *autograd.Var { return ops.Reshape(ops.Add(a, b), 3) },
		"two parts of a seed": func(a, b *autograd.Var) *autograd.Var { return ops.Slice(ops.Concat(0, a, b), 0, 1, 4) },
		"expanded": func(a, b *autograd.Var) *autograd.Var {
			return ops.Expand(ops.Sum(ops.Add(a, b), ops.All()), 3)
		},
		"a leaf alone": func(a, b *autograd.Var) *autograd.Var { return a },
	} {
		tape := newTape(t)
		a, b := host(t, tensor.Float64, []float64{1, 2, 3}, 3), host(t, tensor.Float64, []float64{4, 5, 6}, 3)
		seed := host(t, tensor.Float64, []float64{7, 8, 9}, 3)
		g, err := tape.BackwardFrom(f(tape.Watch(a), tape.Watch(b)), seed)
		if err != nil {
			t.Fatal(err)
		}
		before := map[*tensor.Tensor][]float64{}
		for _, x := range []*tensor.Tensor{a, b} {
			if g.Of(x) != nil {
				before[x] = floats(t, tape, g.Of(x))
			}
		}
		for x := range before {
			if g.Of(x).HasOverlap() || g.Of(x).Overlaps(seed) || g.Of(x).Overlaps(a) {
				t.Errorf("%s: a gradient is not its own", name)
			}
			tape.Run(func(ctx context.Context, dev device.Device) error {
				return dev.Unary(ctx, device.Unary{Func: device.MulScalar, A: 2}, g.Of(x), g.Of(x))
			})
			for y, want := range before {
				got := floats(t, tape, g.Of(y))
				if y == x {
					for i := range want {
						want[i] *= 2
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: after doubling one the other is %v, want %v", name, got, want)
				}
			}
		}
		if got, _ := seed.Float64s(); !slices.Equal(got, []float64{7, 8, 9}) {
			t.Errorf("%s: the seed became %v", name, got)
		}
	}
}

// A node may give one new tensor to several operands.
func TestOneGradientForTwo(t *testing.T) {
	tape := newTape(t)
	a, b := host(t, tensor.Float64, []float64{1, 2}, 2), host(t, tensor.Float64, []float64{3, 4}, 2)
	va, vb := tape.Watch(a), tape.Watch(b)
	if _, ok := autograd.Begin("both", va, vb); !ok {
		t.Fatal(tape.Err())
	}
	n := &own{backward: func(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
		x := s.Unary(device.Unary{Func: device.MulScalar, A: 3}, tensor.Float64, g)
		return []*tensor.Tensor{x, x}
	}}
	y := tape.Record(tape.Binary(device.Add, tensor.Float64, a, b), n, va, vb)
	// Each is used once more, so that its gradient is added to.
	g, err := tape.Backward(ops.Sum(ops.Add(ops.Add(y, va), vb), ops.All()))
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		tape.Full(tensor.Float64, -1000, 2) // takes what was freed
	}
	for _, x := range []*tensor.Tensor{a, b} {
		if got := floats(t, tape, g.Of(x)); !slices.Equal(got, []float64{4, 4}) {
			t.Errorf("gradient %v, want 4", got)
		}
	}
}

// A result put on its tape again as a constant, to stop gradients, is kept.
func TestDetach(t *testing.T) {
	tape := newTape(t)
	x := scalar(t, 3)
	v := tape.Watch(x)
	y := ops.Square(v)
	cut := tape.Const(y.Tensor())
	g, err := tape.Backward(ops.Mul(ops.MulScalar(y, 1), cut)) // 9 x^2
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		tape.Full(tensor.Float64, -1000) // takes what was freed
	}
	if got := floats(t, tape, g.Of(x)); got[0] != 54 {
		t.Errorf("gradient %v, want 54", got)
	}
	if got, err := cut.Item(); got != 9 || err != nil {
		t.Errorf("the constant is %v, %v", got, err)
	}
}

// Memory that was given back is never read.
func TestFreedMemory(t *testing.T) {
	freed := func() (*autograd.Tape, *tensor.Tensor) {
		tape := newTape(t)
		x := tape.Full(tensor.Float64, 3, 2)
		tape.Free(x)
		return tape, x
	}
	for name, use := range map[string]func() error{
		"const":    func() error { tape, x := freed(); return tape.Const(x).Err() },
		"watch":    func() error { tape, x := freed(); return tape.Watch(x).Err() },
		"download": func() error { tape, x := freed(); _, err := tape.Download(x); return err },
		"read":     func() error { _, x := freed(); _, err := x.Float64s(); return err },
		"write":    func() error { _, x := freed(); return x.SetFloat64s([]float64{1, 2}) },
		"compute":  func() error { tape, x := freed(); tape.Copy(tensor.Float64, x); return tape.Err() },
		"a released tape": func() error {
			tape := newTape(t)
			x := scalar(t, 1)
			g, err := tape.Backward(ops.Square(tape.Watch(x)))
			if err != nil {
				t.Fatal(err)
			}
			tape.Release()
			_, err = g.Of(x).Float64s()
			return err
		},
		"another released tape's": func() error {
			tape, other := newTape(t), newTape(t)
			v := tape.Const(other.Full(tensor.Float64, 1))
			other.Release()
			return ops.Exp(v).Err()
		},
	} {
		if err := use(); !errors.Is(err, tensor.ErrFreed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The result of a wrong call is not an optional operand that is absent.
func TestWrongResultIsNotAbsent(t *testing.T) {
	tape := newTape(t)
	x := tape.Watch(host(t, tensor.Float64, []float64{1, 2}, 1, 2))
	y := ops.RMSNorm(x, ops.Concat(0), 0) // no operand, so no tape
	if !errors.Is(y.Err(), tensor.ErrMissing) || !strings.Contains(y.Err().Error(), "no tape") {
		t.Errorf("%v", y.Err())
	}
}

// What fails outside an operation does not bear the name of the last one, and
// two tapes that meet both name the operation that they met in.
func TestNameOfTheOperation(t *testing.T) {
	tape := newTape(t)
	ops.Square(tape.Watch(scalar(t, 1)))
	tape.Full(tensor.Float64, 1, -1)
	var op *autograd.OpError
	if err := tape.Err(); !errors.As(err, &op) || op.Op != "" {
		t.Errorf("%v", err)
	}
	first, second := newTape(t), newTape(t)
	a, b := first.Watch(scalar(t, 1)), ops.Exp(second.Watch(scalar(t, 1)))
	ops.Mul(a, b)
	for _, tape := range []*autograd.Tape{first, second} {
		if err := tape.Err(); !errors.As(err, &op) || op.Op != "mul" || !errors.Is(err, autograd.ErrOtherTape) {
			t.Errorf("%v", err)
		}
	}
}

// A question that has no answer says where it was asked, and the tape goes on.
func TestPlaceOfQuestions(t *testing.T) {
	tape := newTape(t)
	v := tape.Watch(host(t, tensor.Float64, []float64{1, 2}, 2))
	_, err := v.Item()
	where := here(-1)
	var op *autograd.OpError
	if !errors.As(err, &op) || op.Where != where || op.Op != "item" {
		t.Errorf("%v, want it at %s", err, where)
	}
	if tape.Err() != nil {
		t.Error(tape.Err())
	}
	if s := (&autograd.OpError{Op: "x"}).Error(); !strings.Contains(s, "x") {
		t.Error(s)
	}
}

// adder is 2a + 3b, which adds its gradients to sums in place.
type adder struct{ sums [][]*tensor.Tensor }

func (n *adder) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	panic("an Adder is asked to add")
}

func (n *adder) BackwardAdd(s *device.Stream, g *tensor.Tensor, want []bool, sums []*tensor.Tensor) []*tensor.Tensor {
	n.sums = append(n.sums, slices.Clone(sums))
	out := make([]*tensor.Tensor, len(want))
	for i := range out {
		if !want[i] {
			continue
		}
		wide := g.DType().Wide()
		x := s.Unary(device.Unary{Func: device.MulScalar, A: float64(2 + i)}, wide, g)
		if out[i] = x; sums[i] != nil {
			s.Accumulate(sums[i], x)
			s.Free(x)
			out[i] = sums[i]
		}
	}
	return out
}

// A node that can add to sums gets those of operands that have a gradient
// already: in the wide type, held by nobody else, and not for one given twice.
func TestAdder(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		tape := newTape(t)
		a, b, c := host(t, d, []float64{1, 2}, 2), host(t, d, []float64{3, 4}, 2), host(t, d, []float64{5, 6}, 2)
		va, vb, vc := tape.Watch(a), tape.Watch(b), tape.Watch(c)
		n := &adder{}
		record := func(x, y *autograd.Var) *autograd.Var {
			if _, ok := autograd.Begin("adder", x, y); !ok {
				t.Fatal(tape.Err())
			}
			two := tape.Unary(device.Unary{Func: device.MulScalar, A: 2}, d, x.Tensor())
			three := tape.Unary(device.Unary{Func: device.MulScalar, A: 3}, d, y.Tensor())
			return tape.Record(tape.Binary(device.Add, d, two, three), n, x, y)
		}
		first := record(va, vb)  // sums for both
		second := record(vb, vb) // none: it is given twice
		third := record(va, vc)  // a has a gradient from the sum below, c has none yet
		all := ops.Add(ops.Add(ops.Add(first, second), ops.Neg(va)), vb)
		g, err := tape.Backward(ops.Sum(ops.Add(all, third), ops.All()))
		if err != nil {
			t.Fatal(err)
		}
		for x, want := range map[*tensor.Tensor][]float64{a: {3, 3}, b: {9, 9}, c: {3, 3}} {
			if got := floats(t, tape, g.Of(x)); !slices.Equal(got, want) {
				t.Errorf("%v: a gradient is %v, want %v", d, got, want)
			}
		}
		if len(n.sums) != 3 {
			t.Fatalf("%d calls", len(n.sums))
		}
		for i, want := range [][2]bool{{true, false}, {false, false}, {true, true}} { // backwards: third, second, first
			for k, x := range n.sums[i] {
				if (x != nil) != want[k] {
					t.Errorf("%v: call %d, operand %d has the sum %v", d, i, k, x)
				}
				if x != nil && x.DType() != tensor.Float32 {
					t.Errorf("%v: a sum in %v", d, x.DType())
				}
			}
		}
	}
}
