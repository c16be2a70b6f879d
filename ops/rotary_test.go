package ops_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// turned is the plain computation, by complex numbers.
func turned(x array, base float64, start int) array {
	last := len(x.shape) - 1
	d := x.shape[last]
	return build(x.shape, func(i []int) float64 {
		k := i[last] % (d / 2)
		at := append([]int{}, i...)
		at[last] = k
		re := x.at(at...)
		at[last] = k + d/2
		im := x.at(at...)
		sin, cos := math.Sincos(float64(start+i[last-1]) * math.Pow(base, -float64(2*k)/float64(d)))
		z := complex(re, im) * complex(cos, sin)
		if i[last] < d/2 {
			return real(z)
		}
		return imag(z)
	})
}

func rotaryChecks() []check {
	var list []check
	for _, s := range []tensor.Shape{{1, 2}, {3, 6}, {13, 2}, {2, 3, 4}, {2, 3, 5, 14}, {0, 4}, {3, 0}} {
		for _, start := range []int{0, 5, -2} {
			list = append(list, check{op: "RotaryEmbedding", about: fmt.Sprint("start ", start), shapes: []tensor.Shape{s},
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
					return ops.RotaryEmbedding(in[0], 100, start)
				},
				want: func(in []array) array { return turned(in[0], 100, start) }})
		}
	}
	return list
}

// TestRotaryTurns: it is a rotation (norms stay), the first position is left
// alone, positions continue from start, a row at -p undoes a row at p, and
// products of two rows depend on the distance of their positions alone.
func TestRotaryTurns(t *testing.T) {
	x := laid("dense", tensor.Float64, normal(3, 42), 7, 6)
	rotate := func(x *tensor.Tensor, start int) *tensor.Tensor {
		r, err := evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.RotaryEmbedding(in[0], 1e4, start)
		}, []*tensor.Tensor{x}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.out
	}
	row := func(x *tensor.Tensor, i int) *tensor.Tensor { return must(x.Slice(0, i, i+1)) }
	dot := func(a, b *tensor.Tensor) float64 {
		s := 0.0
		y := must(b.Float64s())
		for i, v := range must(a.Float64s()) {
			s += v * y[i]
		}
		return s
	}
	y := rotate(x, 0)
	if err := same(row(y, 0), row(x, 0)); err != nil {
		t.Errorf("position 0: %v", err)
	}
	for i := range 7 {
		if a, b := dot(row(x, i), row(x, i)), dot(row(y, i), row(y, i)); math.Abs(a-b) > 1e-13*a {
			t.Errorf("row %d: the norm went from %v to %v", i, a, b)
		}
		if err := same(rotate(row(x, i), i), row(y, i)); err != nil {
			t.Errorf("row %d alone from start %d: %v", i, i, err)
		}
		close(t, "back again", must(rotate(row(y, i), -i).Float64s()), must(row(x, i).Float64s()), 1e-14)
	}
	for _, shift := range []int{1, 10, 1000} {
		a, b := dot(rotate(row(x, 1), 3), rotate(row(x, 2), 8)), dot(rotate(row(x, 1), 3+shift), rotate(row(x, 2), 8+shift))
		if math.Abs(a-b) > 1e-12 {
			t.Errorf("a product went from %v to %v by a shift of %d", a, b, shift)
		}
	}
	// The gradient is the rotation back: of y by itself it gives x.
	tape := newTape(t)
	v := tape.Watch(x)
	out := ops.RotaryEmbedding(v, 1e4, 0)
	g := must(tape.BackwardFrom(out, y))
	close(t, "gradient", must(must(tape.Download(g.Of(x))).Float64s()), must(x.Float64s()), 1e-14)
}

func TestRotaryRefusals(t *testing.T) {
	list := []refusal{
		{"an odd width", "RotaryEmbedding", tensor.ErrShape, []string{"x is (2,3)", "even"}, func(p *autograd.Tape) *autograd.Var { return ops.RotaryEmbedding(ones(p, 2, 3), 100, 0) }},
		{"one axis", "RotaryEmbedding", tensor.ErrShape, []string{"x is (4)"}, func(p *autograd.Tape) *autograd.Var { return ops.RotaryEmbedding(ones(p, 4), 100, 0) }},
	}
	for _, base := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		list = append(list, refusal{"base", "RotaryEmbedding", tensor.ErrValue, []string{"base"}, func(p *autograd.Tape) *autograd.Var { return ops.RotaryEmbedding(ones(p, 3, 4), base, 0) }})
	}
	testRefusals(t, list)
}

// The angles that are kept serve many tapes at once, and each gets its own.
func TestRotaryTables(t *testing.T) {
	x := laid("dense", tensor.Float32, normal(4, 7*8), 7, 8)
	turn := func(i int) ([]float64, error) {
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		return ops.RotaryEmbedding(tape.Const(x), float64(10+i%3), i%7).Float64s()
	}
	want := make([][]float64, 21)
	for i := range want {
		y, err := turn(i)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = y
		for j := range i {
			if slices.Equal(y, want[j]) {
				t.Fatalf("angles %d are those of %d", i, j)
			}
		}
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for k := range 200 {
				i := (k/3*5 + worker) % len(want)
				if y, err := turn(i); err != nil || !slices.Equal(y, want[i]) {
					t.Errorf("angles %d again: %v, want %v (%v)", i, y, want[i], err)
					return
				}
			}
		})
	}
	wg.Wait()
}
