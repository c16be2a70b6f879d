package ops_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// A norm does not depend on the size of its row, however its squares come out,
// and its gradient is inverse to it.
func TestNormsOfAnySize(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	seed := []float64{0.3, -1, 2, 0.7, 1, -0.2}
	run := func(d tensor.DType, exp int, center bool) (y, g []float64) {
		row := []float64{1, -2, 3, -4, 5, 0.5}
		for i := range row {
			row[i] = math.Ldexp(row[i], exp)
		}
		x, err := tensor.FromFloat64s(d, row, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		v := tape.Watch(x)
		n := ops.RMSNorm(v, nil, 0)
		if center {
			n = ops.LayerNorm(v, nil, nil, 0)
		}
		if y, err = n.Float64s(); err != nil {
			t.Fatal(err)
		}
		s, err := tensor.FromFloat64s(d, seed, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		grads, err := tape.BackwardFrom(n, s)
		if err != nil {
			t.Fatal(err)
		}
		if g, err = grads.Of(x).Float64s(); err != nil {
			t.Fatal(err)
		}
		return y, g
	}
	for d, exponents := range map[tensor.DType][]int{tensor.Float64: {-1000, -664, 500, 664, 1000}, tensor.Float32: {-120, -126, 100, 120}, tensor.BFloat16: {-120, 120}} {
		for _, center := range []bool{false, true} {
			wantY, wantG := run(d, 0, center)
			for _, exp := range exponents {
				y, g := run(d, exp, center)
				for i := range y {
					if math.Abs(y[i]-wantY[i]) > 2e-7 || math.Abs(math.Ldexp(g[i], exp)-wantG[i]) > 2e-7*(1+math.Abs(wantG[i])) {
						t.Errorf("%v 2^%d centred %v: element %d is %v with gradient %v 2^%d, want %v with %v", d, exp, center, i, y[i], math.Ldexp(g[i], exp), -exp, wantY[i], wantG[i])
					}
				}
			}
		}
	}
}

// The mean of a row far from 0 is not rounded to the row's dtype.
func TestMeanIsNotRounded(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	x, err := tensor.FromSlice([]float32{16777216, 16777218, 16777218}, 3) // 2^24, a mean of 2^24 + 4/3
	if err != nil {
		t.Fatal(err)
	}
	if v, err := ops.Var(tape.Watch(x), ops.All(), 0).Item(); err != nil || math.Abs(v-8.0/9) > 1e-6 {
		t.Errorf("variance %v, want 8/9 (%v)", v, err)
	}
	y, err := ops.LayerNorm(tape.Watch(x), nil, nil, 0).Float64s()
	if err != nil || math.Abs(y[0]+math.Sqrt2) > 1e-6 || math.Abs(y[1]-math.Sqrt2/2) > 1e-6 {
		t.Errorf("%v, want -1.414, 0.707, 0.707 (%v)", y, err)
	}
}

// A row with an infinite logit has no softmax: all of it is NaN, and so is its
// logarithm and its loss; the sum of its exponentials is infinite.
func TestInfiniteLogit(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	x, err := tensor.FromSlice([]float32{1, float32(math.Inf(1)), 2, 1, 2, float32(math.Inf(-1))}, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tensor.FromSlice([]int64{0, 0}, 2)
	if err != nil {
		t.Fatal(err)
	}
	v := tape.Watch(x)
	for name, y := range map[string]*autograd.Var{"softmax": ops.Softmax(v, -1), "log-softmax": ops.LogSoftmax(v, -1)} {
		got, err := y.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for i, y := range got {
			if math.IsNaN(y) != (i < 3) {
				t.Errorf("%s: %v", name, got)
				break
			}
		}
	}
	if got, err := ops.CrossEntropy(v, tape.Const(ids), ops.PerTarget, ops.IgnoreIndex).Float64s(); err != nil || !math.IsNaN(got[0]) || math.Abs(got[1]-1.3132617) > 1e-6 {
		t.Errorf("cross entropy: %v, %v", got, err)
	}
	if got, err := ops.LogSumExp(v, ops.Over(-1)).Float64s(); err != nil || !math.IsInf(got[0], 1) || math.Abs(got[1]-2.3132617) > 1e-6 {
		t.Errorf("logsumexp: %v, %v", got, err)
	}
}

// Tables beyond the machine's memory are an error, whatever little memory the operand has.
func TestTablesBeyondMemory(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	one, err := tensor.FromSlice([]float32{1})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(t *autograd.Tape, huge func(shape ...int) *autograd.Var) *autograd.Var{
		"dropout": func(_ *autograd.Tape, huge func(shape ...int) *autograd.Var) *autograd.Var {
			return ops.Dropout(huge(1<<50), 0.5, random.Source{})
		},
		"rotary": func(_ *autograd.Tape, huge func(shape ...int) *autograd.Var) *autograd.Var {
			return ops.RotaryEmbedding(huge(1<<25, 1<<25), 1e4, 0)
		},
		"attention": func(_ *autograd.Tape, huge func(shape ...int) *autograd.Var) *autograd.Var {
			x := huge(1, 1, 1<<44, 2)
			return ops.Attention(x, x, x, ops.AttentionOptions{Causal: true})
		},
		"broadcast": func(_ *autograd.Tape, huge func(shape ...int) *autograd.Var) *autograd.Var {
			return ops.Add(huge(1<<25, 1), huge(1, 1<<25))
		},
	} {
		tape := autograd.NewTape(context.Background(), dev)
		y := f(tape, func(shape ...int) *autograd.Var {
			x, err := one.Expand(shape...)
			if err != nil {
				t.Fatal(err)
			}
			return tape.Watch(x)
		})
		if err := y.Err(); !errors.Is(err, tensor.ErrSize) {
			t.Errorf("%s: %v", name, err)
		}
		tape.Release()
	}
}

// Empty operands need no table, whatever their other axes are.
func TestEmptyOfHugeShape(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	empty := func(shape ...int) *autograd.Var {
		x, err := tensor.Zeros(tensor.Float32, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return tape.Watch(x)
	}
	x := empty(0, 1, 1<<20, 2)
	for name, y := range map[string]*autograd.Var{
		"attention": ops.Attention(x, x, x, ops.AttentionOptions{Causal: true}),
		"rotary":    ops.RotaryEmbedding(empty(0, 1<<50, 2), 1e4, 0),
		"dropout":   ops.Dropout(empty(0, 1<<50), 0.5, random.Source{}),
	} {
		if err := y.Err(); err != nil || y.Shape().Len() != 0 {
			t.Errorf("%s: %v, %v", name, y.Shape(), err)
		}
	}
}

// Loops on the host look at the context.
func TestHostLoopsStop(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	one, err := tensor.FromSlice([]float32{1})
	if err != nil {
		t.Fatal(err)
	}
	big, err := one.Expand(1, 1, 1<<14, 1<<14)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(x *autograd.Var) *autograd.Var{
		"dropout": func(x *autograd.Var) *autograd.Var { return ops.Dropout(x, 0.5, random.Source{}) },
		"rotary":  func(x *autograd.Var) *autograd.Var { return ops.RotaryEmbedding(x, 1e4, 0) },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		tape := autograd.NewTape(ctx, dev)
		x := tape.Watch(big)
		cancel()
		if err := f(x).Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		tape.Release()
	}
}
