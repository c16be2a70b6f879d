package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

func dropoutChecks() []check {
	var list []check
	source := random.Source{Seed: 9, Stream: 4}
	for _, s := range []tensor.Shape{{}, {1}, {13}, {3, 7}, {2, 3, 5}, {0, 3}} {
		for _, p := range []float64{0, 0.3, 0.9} {
			list = append(list, check{op: "Dropout", about: fmt.Sprint("p ", p), shapes: []tensor.Shape{s},
				apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Dropout(in[0], p, source) },
				want: func(in []array) array {
					y := array{s, make([]float64, len(in[0].data))}
					for i, x := range in[0].data {
						if source.Float64(uint64(i)) >= p {
							y.data[i] = x / (1 - p)
						}
					}
					return y
				}})
		}
	}
	return list
}

// TestDropoutMask: the mask follows from the source alone, keeps the expected
// part, and is the gradient's mask too.
func TestDropoutMask(t *testing.T) {
	const n = 20000
	for _, d := range floats {
		for _, p := range []float64{0.1, 0.5} {
			run := func(s random.Source) (y, g []float64) {
				tape := newTape(t)
				x := tape.Watch(laid("dense", d, normal(1, n), n))
				out := ops.Dropout(x, p, s)
				y = values(t, out)
				return y, gradients(t, out, x)[0]
			}
			y, g := run(random.Source{Seed: 1})
			again, g2 := run(random.Source{Seed: 1})
			equal(t, "the same source", again, y)
			equal(t, "the same source's gradient", g2, g)
			kept, factor := 0.0, tensor.Round(d, tensor.Round(d.Wide(), 1/(1-p)))
			for i := range y {
				if y[i] != 0 {
					kept++
				}
				if want := map[bool]float64{true: 0, false: factor}[y[i] == 0]; g[i] != want {
					t.Fatalf("%v: the gradient where the result is %v is %v", d, y[i], g[i])
				}
			}
			if dev := math.Abs(kept/n - (1 - p)); dev > 4*math.Sqrt(p*(1-p)/n) {
				t.Errorf("%v of %d are kept at p %v", kept, n, p)
			}
			for _, other := range []random.Source{{Seed: 2}, {Seed: 1, Stream: 1}} {
				z, _ := run(other)
				differ := 0.0
				for i := range z {
					if (z[i] == 0) != (y[i] == 0) {
						differ++
					}
				}
				if want := 2 * p * (1 - p); math.Abs(differ/n-want) > 0.02 {
					t.Errorf("another source's mask differs in %v of the elements, want %v", differ/n, want)
				}
			}
		}
	}
}

func TestDropoutOfNothing(t *testing.T) {
	for _, d := range floats {
		x := laid("dense", d, append(normal(2, 5), math.NaN(), math.Inf(1)), 7)
		r, err := evaluate(func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.Dropout(in[0], 0, random.Source{})
		}, []*tensor.Tensor{x}, nil)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "p = 0", must(r.out.Float64s()), must(x.Float64s()))
	}
}

func TestDropoutRefusals(t *testing.T) {
	var list []refusal
	for _, p := range []float64{-0.1, 1, 1.5, math.NaN(), math.Inf(1)} {
		list = append(list, refusal{"probability", "Dropout", tensor.ErrValue, []string{"p is "}, func(tape *autograd.Tape) *autograd.Var { return ops.Dropout(ones(tape, 3), p, random.Source{}) }})
	}
	testRefusals(t, list)
}
