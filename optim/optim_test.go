package optim_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

var (
	dev    = cpu.New(cpu.Threads(2))
	floats = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func normal(seed uint64, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = random.Source{Seed: seed}.Normal(uint64(i))
	}
	return x
}

func host(d tensor.DType, x []float64, shape ...int) *tensor.Tensor {
	return must(tensor.FromFloat64s(d, x, shape...))
}

// give adds to an accumulator a backward pass in which each parameter's
// gradient is the given numbers; nil leaves the parameter out.
func give(t testing.TB, dev *cpu.Device, sum *optim.Accumulator, params []optim.Param, grads ...[]float64) {
	t.Helper()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	var total *autograd.Var
	for i, p := range params {
		x := tape.Watch(p.Value)
		if grads[i] == nil {
			continue
		}
		// The gradient of sum(x g) is g; the sum itself plays no part.
		y := ops.Sum(ops.Mul(x, tape.Const(host(p.Value.DType(), grads[i], p.Value.Shape()...))), ops.All())
		if y = ops.Cast(y, tensor.Float64); total == nil {
			total = y
		} else {
			total = ops.Add(total, y)
		}
	}
	g, err := tape.Backward(total)
	if err != nil {
		t.Fatal(err)
	}
	if err := sum.Add(g); err != nil {
		t.Fatal(err)
	}
}

// adamW is one parameter's plain computation, in float64.
type adamW struct {
	w, m, v []float64
	step    int
}

func (a *adamW) update(g []float64, beta1, beta2, eps, decay, lr float64) {
	a.step++
	for i := range a.w {
		a.m[i] = beta1*a.m[i] + (1-beta1)*g[i]
		a.v[i] = beta2*a.v[i] + (1-beta2)*g[i]*g[i]
		m := a.m[i] / (1 - math.Pow(beta1, float64(a.step)))
		v := a.v[i] / (1 - math.Pow(beta2, float64(a.step)))
		a.w[i] -= lr * decay * a.w[i]
		a.w[i] -= lr * m / (math.Sqrt(v) + eps)
	}
}

// TestAdamW compares several steps with the plain computation; decay applies to
// the first parameter alone.
func TestAdamW(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float64, tensor.Float32} {
		for _, o := range []optim.AdamWOptions{{}, {WeightDecay: 0.1}, {Beta1: 0.8, Beta2: 0.99, Eps: 1e-3, WeightDecay: 0.3}} {
			full := o
			for _, f := range []struct {
				x  *float64
				is float64
			}{{&full.Beta1, 0.9}, {&full.Beta2, 0.95}, {&full.Eps, 1e-8}} {
				if *f.x == 0 {
					*f.x = f.is
				}
			}
			params := []optim.Param{{Value: host(d, normal(1, 21), 3, 7), Decay: true}, {Value: host(d, normal(2, 1)), Decay: false}, {Value: host(d, normal(3, 13), 13)}}
			var plain []*adamW
			for _, p := range params {
				n := p.Value.Len()
				plain = append(plain, &adamW{w: must(p.Value.Float64s()), m: make([]float64, n), v: make([]float64, n)})
			}
			sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, o))
			for step := range 7 {
				lr := 0.01 * float64(step) // the first step moves nothing but the means
				var grads [][]float64
				for i, p := range params {
					g := must(host(d, normal(uint64(10*step+i), p.Value.Len()), p.Value.Shape()...).Float64s())
					grads = append(grads, g)
					decay := 0.0
					if p.Decay {
						decay = full.WeightDecay
					}
					plain[i].update(g, full.Beta1, full.Beta2, full.Eps, decay, lr)
				}
				must(0, sum.Reset())
				give(t, dev, sum, params, grads...)
				if err := opt.Step(sum, lr); err != nil {
					t.Fatal(err)
				}
				tolerance := map[tensor.DType]float64{tensor.Float64: 1e-14, tensor.Float32: 2e-6}[d]
				for i, p := range params {
					for k, w := range must(p.Value.Float64s()) {
						if math.Abs(w-plain[i].w[k]) > tolerance {
							t.Fatalf("%v %+v: after step %d parameter %d at %d is %v, want %v", d, o, step, i, k, w, plain[i].w[k])
						}
					}
				}
			}
		}
	}
}

// TestDecay: without a gradient a parameter shrinks where decay was asked for, and stays elsewhere.
func TestDecay(t *testing.T) {
	params := []optim.Param{{Value: host(tensor.Float64, []float64{8}, 1), Decay: true}, {Value: host(tensor.Float64, []float64{8}, 1)}}
	sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 0.5}))
	for range 2 {
		must(0, opt.Step(sum, 0.25))
	}
	for i, want := range []float64{8 * 0.875 * 0.875, 8} {
		if x := must(params[i].Value.Float64s()); x[0] != want {
			t.Errorf("parameter %d is %v, want %v", i, x[0], want)
		}
	}
}

// TestMasterWeights: updates far below a 16-bit parameter's resolution add up,
// and the parameter is the float32 weight, rounded.
func TestMasterWeights(t *testing.T) {
	for _, d := range floats {
		params := []optim.Param{{Value: host(d, []float64{1, -1}, 2)}}
		sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, optim.AdamWOptions{}))
		give(t, dev, sum, params, []float64{1, 1})
		for range 200 {
			must(0, opt.Step(sum, 1e-4)) // each moves by lr, as the gradient stays
		}
		for i, x := range must(params[0].Value.Float64s()) {
			want := tensor.Round(d, []float64{1, -1}[i]-0.02)
			if math.Abs(x-want) > map[bool]float64{true: 0, false: 5e-6}[d.IsHalf()] {
				t.Errorf("%v: %v, want %v", d, x, want)
			}
		}
	}
}

// TestAccumulator: the sum of several passes in the wide type, its norm, scaling and resetting.
func TestAccumulator(t *testing.T) {
	for _, d := range floats {
		params := []optim.Param{{Value: host(d, normal(1, 3), 3)}, {Value: host(d, normal(2, 1))}, {Value: host(d, nil, 0, 4)}}
		sum := must(optim.NewAccumulator(dev, params))
		norm := func(want float64) {
			t.Helper()
			if x, err := sum.Norm(); err != nil || math.Abs(x-want) > 1e-6*want {
				t.Errorf("%v: the norm is %v, want %v (%v)", d, x, want, err)
			}
		}
		norm(0)
		give(t, dev, sum, params, []float64{3, 0, 0}, []float64{4}, []float64{})
		norm(5)
		give(t, dev, sum, params, []float64{0, 2, 6}, nil, []float64{})
		norm(math.Sqrt(9 + 4 + 36 + 16))
		must(0, sum.Scale(-0.5))
		norm(math.Sqrt(9+4+36+16) / 2)
		must(0, sum.Scale(-2))
		for range 600 { // a running sum in bfloat16 would stick at 256
			give(t, dev, sum, params, []float64{1, 0, 0}, nil, nil)
		}
		norm(math.Sqrt(603*603 + 4 + 36 + 16))
		must(0, sum.Reset())
		norm(0)
	}
	// Squares of float32 gradients beyond its range still have a norm.
	params := []optim.Param{{Value: host(tensor.Float32, []float64{0, 0}, 2)}}
	sum := must(optim.NewAccumulator(dev, params))
	give(t, dev, sum, params, []float64{3e30, 4e30})
	if x := must(sum.Norm()); math.Abs(x/5e30-1) > 1e-6 {
		t.Errorf("the norm is %v, want 5e30", x)
	}
}

// TestSeveralPassesAreOne: accumulated and scaled, the passes move the
// parameter as one pass with the mean gradient does.
func TestSeveralPassesAreOne(t *testing.T) {
	run := func(grads ...float64) float64 {
		params := []optim.Param{{Value: host(tensor.Float64, []float64{1}, 1)}}
		sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, optim.AdamWOptions{Eps: 0.1}))
		for range 3 {
			must(0, sum.Reset())
			for _, g := range grads {
				give(t, dev, sum, params, []float64{g})
			}
			must(0, sum.Scale(1/float64(len(grads))))
			must(0, opt.Step(sum, 0.1))
		}
		return must(params[0].Value.Float64s())[0]
	}
	if a, b := run(1, 2, 3, 6), run(3); a != b || a == 1 {
		t.Errorf("%v and %v", a, b)
	}
}

// TestThreads: the same bits for every number of threads.
func TestThreads(t *testing.T) {
	for _, d := range floats {
		var want []uint64
		var norm float64
		for _, threads := range []int{1, 2, 3} {
			dev := cpu.New(cpu.Threads(threads))
			params := []optim.Param{{Value: host(d, normal(1, 70000), 700, 100), Decay: true}, {Value: host(d, normal(2, 7), 7)}}
			sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 0.1}))
			for step := range 2 {
				give(t, dev, sum, params, normal(uint64(3+step), 70000), normal(9, 7))
				x := must(sum.Norm())
				must(0, sum.Scale(1/x))
				must(0, opt.Step(sum, 0.01))
				if threads == 1 {
					norm = x
				} else if step == 1 && x != norm {
					t.Errorf("%v: the norm is %v with 1 thread, %v with %d", d, norm, x, threads)
				}
			}
			got := must(params[0].Value.Bits())
			if want == nil {
				want = got
			} else if !slices.Equal(got, want) {
				t.Errorf("%v: other bits with %d threads", d, threads)
			}
			must(0, dev.Close())
		}
	}
}

// TestParamsAreCopied: the caller may reuse the list.
func TestParamsAreCopied(t *testing.T) {
	params := []optim.Param{{Value: host(tensor.Float64, []float64{1}, 1)}}
	sum, opt := must(optim.NewAccumulator(dev, params)), must(optim.NewAdamW(dev, params, optim.AdamWOptions{}))
	give(t, dev, sum, params, []float64{1})
	mine := params[0].Value
	params[0].Value = host(tensor.Float64, []float64{5}, 1)
	must(0, opt.Step(sum, 0.1))
	if a, b := must(mine.Float64s())[0], must(params[0].Value.Float64s())[0]; a == 1 || b != 5 {
		t.Errorf("the parameter is %v, the other tensor %v", a, b)
	}
}

func TestOptimRefusals(t *testing.T) {
	good := func() []optim.Param { return []optim.Param{{Value: host(tensor.Float32, []float64{1, 2}, 2)}} }
	twice := good()
	twice = append(twice, twice[0])
	for _, c := range []struct {
		what   string
		params []optim.Param
		kind   error
		word   string
	}{
		{"nil", append(good(), optim.Param{}), tensor.ErrMissing, "params[1]"},
		{"integers", append(good(), optim.Param{Value: must(tensor.FromSlice([]int32{1}, 1))}), tensor.ErrDType, "params[1]"},
		{"twice", twice, tensor.ErrAlias, "params[1]"},
		{"expanded", []optim.Param{{Value: must(host(tensor.Float32, []float64{1}, 1).Expand(3))}}, tensor.ErrAlias, "params[0]"},
	} {
		_, err := optim.NewAccumulator(dev, c.params)
		_, err2 := optim.NewAdamW(dev, c.params, optim.AdamWOptions{})
		for _, e := range []error{err, err2} {
			if !errors.Is(e, c.kind) || !strings.Contains(e.Error(), c.word) {
				t.Errorf("%s: %v", c.what, e)
			}
		}
	}
	if _, err := optim.NewAdamW(nil, good(), optim.AdamWOptions{}); !errors.Is(err, tensor.ErrMissing) {
		t.Errorf("no device: %v", err)
	}
	if _, err := optim.NewAccumulator(nil, good()); !errors.Is(err, tensor.ErrMissing) {
		t.Errorf("no device: %v", err)
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, o := range []optim.AdamWOptions{{Beta1: 1}, {Beta1: -0.1}, {Beta1: nan}, {Beta2: 1}, {Beta2: nan}, {Eps: -1}, {Eps: inf}, {Eps: nan}, {WeightDecay: -1}, {WeightDecay: nan}, {WeightDecay: inf}} {
		if _, err := optim.NewAdamW(dev, good(), o); !errors.Is(err, tensor.ErrValue) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	params, other := good(), good()
	opt := must(optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 1}))
	if err := opt.Step(nil, 0.1); !errors.Is(err, tensor.ErrCount) {
		t.Errorf("no gradients: %v", err)
	}
	for _, wrong := range [][]optim.Param{{}, other, append(good(), other...)} {
		if err := opt.Step(must(optim.NewAccumulator(dev, wrong)), 0.1); !errors.Is(err, tensor.ErrCount) {
			t.Errorf("gradients of other parameters: %v", err)
		}
	}
	for _, lr := range []float64{-1, nan, inf} {
		if err := opt.Step(must(optim.NewAccumulator(dev, params)), lr); !errors.Is(err, tensor.ErrValue) {
			t.Errorf("lr %v: %v", lr, err)
		}
	}
	if x := must(params[0].Value.Float64s()); !slices.Equal(x, []float64{1, 2}) {
		t.Errorf("refused steps moved a parameter: %v", x)
	}
	// Refused steps do not count: the next one is the first.
	opt = must(optim.NewAdamW(dev, params, optim.AdamWOptions{}))
	must(0, map[bool]error{true: nil, false: errors.New("not refused")}[opt.Step(nil, 0.1) != nil])
	sum := must(optim.NewAccumulator(dev, params))
	give(t, dev, sum, params, []float64{1, 1})
	must(0, opt.Step(sum, 0.5))
	for i, x := range must(params[0].Value.Float64s()) {
		if want := []float64{0.5, 1.5}[i]; math.Abs(x-want) > 1e-6 {
			t.Errorf("the first step gave %v, want %v", x, want)
		}
	}
}

func TestCosine(t *testing.T) {
	for _, c := range []struct {
		step, warmup, steps int
		want                float64
	}{
		{0, 10, 110, 0.1}, {4, 10, 110, 0.5}, {9, 10, 110, 1}, {10, 10, 110, 1}, {60, 10, 110, 0.6}, {110, 10, 110, 0.2}, {5000, 10, 110, 0.2},
		{0, 0, 100, 1}, {50, 0, 100, 0.6}, {100, 0, 100, 0.2}, {0, 0, 0, 0.2}, {3, 5, 5, 0.8}, {5, 5, 5, 0.2}, {6, 7, 5, 1},
	} {
		if x := optim.Cosine(c.step, c.warmup, c.steps, 1, 0.2); math.Abs(x-c.want) > 1e-15 {
			t.Errorf("step %d of %d, warmup %d: %v, want %v", c.step, c.steps, c.warmup, x, c.want)
		}
	}
	last := 1.0
	for step := 10; step < 120; step++ {
		x := optim.Cosine(step, 10, 110, 1, 0.2)
		if x > last || x < 0.2 {
			t.Errorf("step %d: %v after %v", step, x, last)
		}
		last = x
	}
}
