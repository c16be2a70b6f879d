package tests

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// What users of other engines have reported, tried on this one.

var floatTypes = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}

func newTape(t *testing.T) *autograd.Tape {
	t.Helper()
	dev := cpu.New()
	tape := autograd.NewTape(context.Background(), dev)
	t.Cleanup(func() { tape.Release(); _ = dev.Close() })
	return tape
}

func hostOf(t *testing.T, d tensor.DType, data []float64, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromFloat64s(d, data, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func idsOf(t *testing.T, data []int64, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(data, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// viewOf keeps the error of a view.
func viewOf(t *testing.T) func(*tensor.Tensor, error) *tensor.Tensor {
	return func(x *tensor.Tensor, err error) *tensor.Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

func numbersOf(t *testing.T, v *autograd.Var) []float64 {
	t.Helper()
	x, err := v.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// backward gives the gradients of tensors, widened.
func backward(t *testing.T, y *autograd.Var, seed *tensor.Tensor, of ...*tensor.Tensor) [][]float64 {
	t.Helper()
	tape := y.Tape()
	g, err := tape.BackwardFrom(y, seed)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]float64
	for i, x := range of {
		gx := g.Of(x)
		if !gx.Shape().Equal(x.Shape()) || gx.DType() != x.DType() {
			t.Fatalf("the gradient of tensor %d, %v, is %v", i, x, gx)
		}
		host, err := tape.Download(gx)
		if err != nil {
			t.Fatal(err)
		}
		v, err := host.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func allFinite(x []float64) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

func constant(n int, x float64) []float64 { return slices.Repeat([]float64{x}, n) }

func TestSoftmaxOf4096Halves(t *testing.T) {
	for _, d := range floatTypes {
		for _, x := range []float64{0, 1.5, -40, 60000} {
			tape := newTape(t)
			y := ops.Softmax(tape.Const(hostOf(t, d, constant(4096, x), 4096)), 0)
			sum := 0.0
			for _, p := range numbersOf(t, y) {
				sum += p
			}
			if sum != 1 {
				t.Errorf("%v: 4096 times %v sum to %v", d, x, sum)
			}
			if s := numbersOf(t, ops.Sum(y, ops.All())); s[0] != 1 {
				t.Errorf("%v: the engine's own sum is %v", d, s[0])
			}
		}
	}
}

func TestSumOf512Ones(t *testing.T) {
	for _, d := range floatTypes {
		x := hostOf(t, d, constant(512, 1), 512)
		tape := newTape(t)
		v := tape.Watch(x)
		ones := tape.Const(hostOf(t, d, constant(512, 1), 512))
		for name, y := range map[string]*autograd.Var{
			"sum":            ops.Sum(v, ops.All()),
			"sum over axes":  ops.Sum(ops.Reshape(v, 16, 32), ops.Over(0, 1)),
			"product":        ops.MatMul(v, ones),
			"matrix product": ops.Reshape(ops.MatMul(ops.Reshape(v, 1, 512), ops.Reshape(ones, 512, 1)), 1),
			"linear":         ops.Reshape(ops.Linear(ops.Reshape(v, 1, 512), ops.Reshape(ones, 1, 512), nil), 1),
			"mean times 512": ops.MulScalar(ops.Mean(v, ops.All()), 512),
		} {
			if got := numbersOf(t, y); got[0] != 512 {
				t.Errorf("%s of 512 %v ones is %v", name, d, got[0])
			}
		}
		// The gradient of a scalar that was expanded 512 times.
		s := hostOf(t, d, []float64{3})
		tape = newTape(t)
		if g := backward(t, ops.Sum(ops.Expand(tape.Watch(s), 512), ops.All()), nil, s); g[0][0] != 512 {
			t.Errorf("%v: the gradient of an expanded scalar is %v", d, g[0][0])
		}
	}
}

func TestSoftmaxAxes(t *testing.T) {
	for name, f := range map[string]func(x *autograd.Var, axis int) *autograd.Var{"softmax": ops.Softmax, "log-softmax": ops.LogSoftmax} {
		for _, d := range floatTypes {
			x, seed := noise(t, d, 1, 1, 2, 3, 5, 4), noise(t, d, 1, 2, 1, 3, 5, 4)
			for axis := range 3 {
				run := func(axis int, turn bool) (y []float64, g []float64) {
					tape := newTape(t)
					v := tape.Watch(x)
					var out *autograd.Var
					if turn { // the same with the axis moved to the end
						out = ops.Transpose(f(ops.Transpose(v, axis, -1), -1), axis, -1)
					} else {
						out = f(v, axis)
					}
					y = numbersOf(t, out)
					return y, backward(t, out, seed, x)[0]
				}
				y, g := run(axis, false)
				yn, gn := run(axis-3, false)
				if !slices.Equal(y, yn) || !slices.Equal(g, gn) {
					t.Errorf("%s %v axis %d and axis %d differ", name, d, axis, axis-3)
				}
				yt, gt := run(axis, true)
				if err := near(d, y, yt, largest(yt)); err != nil {
					t.Errorf("%s %v axis %d: %v", name, d, axis, err)
				}
				if err := near(d, g, gt, largest(gt)); err != nil {
					t.Errorf("%s %v axis %d backward: %v", name, d, axis, err)
				}
				// Along the axis they sum to one.
				if name == "softmax" {
					tape := newTape(t)
					for _, s := range numbersOf(t, ops.Sum(ops.Softmax(tape.Const(x), axis), ops.Over(axis))) {
						if math.Abs(s-1) > 0.01 {
							t.Errorf("%v axis %d sums to %v", d, axis, s)
						}
					}
				}
			}
		}
	}
}

func TestBroadcastGradients(t *testing.T) {
	for _, d := range floatTypes {
		a, b := hostOf(t, d, []float64{1, 2, 3}, 3, 1), hostOf(t, d, []float64{1, 2, 3, 4}, 1, 4)
		tape := newTape(t)
		y := ops.Add(tape.Watch(a), tape.Watch(b))
		g := backward(t, ops.Sum(y, ops.All()), nil, a, b)
		if !slices.Equal(g[0], []float64{4, 4, 4}) || !slices.Equal(g[1], []float64{3, 3, 3, 3}) {
			t.Errorf("%v (3,1)+(1,4): %v", d, g)
		}
		tape = newTape(t)
		g = backward(t, ops.Sum(ops.Mul(tape.Watch(a), tape.Watch(b)), ops.All()), nil, a, b)
		if !slices.Equal(g[0], []float64{10, 10, 10}) || !slices.Equal(g[1], []float64{6, 6, 6, 6}) {
			t.Errorf("%v (3,1)*(1,4): %v", d, g)
		}
		s, m := hostOf(t, d, []float64{2}), hostOf(t, d, []float64{1, 2, 3, 4, 5, 6}, 2, 3)
		tape = newTape(t)
		g = backward(t, ops.Sum(ops.Add(tape.Watch(s), tape.Watch(m)), ops.All()), nil, s, m)
		if g[0][0] != 6 || !slices.Equal(g[1], constant(6, 1)) {
			t.Errorf("%v scalar + (2,3): %v", d, g)
		}
		tape = newTape(t)
		g = backward(t, ops.Sum(ops.Sub(tape.Watch(m), tape.Watch(s)), ops.All()), nil, s, m)
		if g[0][0] != -6 || !slices.Equal(g[1], constant(6, 1)) {
			t.Errorf("%v (2,3) - scalar: %v", d, g)
		}
		p, q := hostOf(t, d, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 2, 2), hostOf(t, d, []float64{1, 2, 3, 4}, 2, 2)
		tape = newTape(t)
		product := ops.MatMul(tape.Watch(p), tape.Watch(q))
		if got := numbersOf(t, product); !slices.Equal(got, []float64{7, 10, 15, 22, 23, 34, 31, 46}) {
			t.Errorf("%v batched product: %v", d, got)
		}
		g = backward(t, ops.Sum(product, ops.All()), nil, p, q)
		// dA = 1 B^T in each batch, dB = the sum over batches of A^T 1.
		if !slices.Equal(g[0], []float64{3, 7, 3, 7, 3, 7, 3, 7}) || !slices.Equal(g[1], []float64{16, 16, 20, 20}) {
			t.Errorf("%v gradients of a batched product: %v", d, g)
		}
	}
}

func TestNodeUsedTwice(t *testing.T) {
	for _, d := range floatTypes {
		x := hostOf(t, d, []float64{1, 2, 3}, 3)
		tape := newTape(t)
		y := ops.Square(tape.Watch(x))
		if g := backward(t, ops.Sum(ops.Mul(y, y), ops.All()), nil, x); !slices.Equal(g[0], []float64{4, 32, 108}) {
			t.Errorf("%v: %v", d, g[0])
		}
	}
}

func TestDiamond(t *testing.T) {
	for _, d := range floatTypes {
		x := hostOf(t, d, []float64{1, 2, 3}, 3)
		tape := newTape(t)
		top := ops.MulScalar(tape.Watch(x), 2)
		left, right := ops.Square(top), ops.AddScalar(ops.Neg(top), 1)
		// (2x)^2 (1-2x): gradient 8x - 24x^2
		if g := backward(t, ops.Sum(ops.Mul(left, right), ops.All()), nil, x); !slices.Equal(g[0], []float64{-16, -80, -192}) {
			t.Errorf("%v: %v", d, g[0])
		}
	}
}

func TestLongChain(t *testing.T) {
	x := hostOf(t, tensor.Float32, []float64{1, -1}, 2)
	tape := newTape(t)
	y := tape.Watch(x)
	for i := range 100000 {
		switch i % 4 {
		case 0:
			y = ops.AddScalar(y, 1)
		case 1:
			y = ops.Neg(y)
		case 2:
			y = ops.Reshape(y, 1, 2)
		default:
			y = ops.Select(y, 0, 0)
		}
	}
	if g := backward(t, ops.Sum(y, ops.All()), nil, x); !slices.Equal(g[0], []float64{-1 * -1, 1}) {
		t.Errorf("%v", g[0])
	}
}

func TestEmbeddingGradients(t *testing.T) {
	for _, d := range floatTypes {
		table := hostOf(t, d, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)
		seed := hostOf(t, d, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2, 3, 2)
		tape := newTape(t)
		y := ops.Embedding(tape.Watch(table), tape.Const(idsOf(t, []int64{2, 0, 2, 2, 3, 0}, 2, 3)))
		if !y.Shape().Equal(tensor.Shape{2, 3, 2}) || !slices.Equal(numbersOf(t, y), []float64{5, 6, 1, 2, 5, 6, 5, 6, 7, 8, 1, 2}) {
			t.Errorf("%v: %v", d, y)
		}
		if g := backward(t, y, seed, table); !slices.Equal(g[0], []float64{14, 16, 0, 0, 13, 16, 9, 10}) {
			t.Errorf("%v: %v", d, g[0])
		}
		// One row 1,000 times: exact, though a 16-bit sum of ones would stop.
		tape = newTape(t)
		y = ops.Embedding(tape.Watch(table), tape.Const(idsOf(t, make([]int64, 1000), 1000)))
		if g := backward(t, y, hostOf(t, d, constant(2000, 1), 1000, 2), table); !slices.Equal(g[0], []float64{1000, 1000, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("%v a row used 1,000 times: %v", d, g[0])
		}
	}
}

// An embedding that is also the head has one gradient, the sum of both uses,
// and the optimizer moves it once.
func TestTiedEmbedding(t *testing.T) {
	model, err := nn.NewTransformer(nn.Config{Vocab: 11, Layers: 1, Dim: 8, Heads: 2, KVHeads: 1, Hidden: 16, Residual: nn.Block, BlockSize: 1}, 3)
	if err != nil {
		t.Fatal(err)
	}
	embeds := 0
	var params []optim.Param
	for _, p := range model.Parameters() {
		if p.Value.Memory() == model.Embed.Value.Memory() {
			embeds++
		}
		params = append(params, optim.Param{Value: p.Value})
	}
	if embeds != 1 {
		t.Fatalf("the embedding is %d parameters", embeds)
	}
	tape := newTape(t)
	dev := tape.Device()
	grads, err := tape.Backward(model.Loss(tape, tape.Const(idsOf(t, []int64{1, 2, 3, 4}, 1, 4)), tape.Const(idsOf(t, []int64{2, 3, 4, 5}, 1, 4))))
	if err != nil {
		t.Fatal(err)
	}
	if grads.Len() != len(params) {
		t.Errorf("%d gradients of %d parameters", grads.Len(), len(params))
	}
	acc, err := optim.NewAccumulator(dev, params)
	if err != nil {
		t.Fatal(err)
	}
	if err := acc.Add(grads); err != nil {
		t.Fatal(err)
	}
	opt, err := optim.NewAdamW(dev, params, optim.AdamWOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := model.Embed.Value.Float64s()
	gradient, err := tape.Download(grads.Of(model.Embed.Value))
	if err != nil {
		t.Fatal(err)
	}
	g, _ := gradient.Float64s()
	const lr = 1e-3
	if err := opt.Step(acc, lr); err != nil {
		t.Fatal(err)
	}
	after, _ := model.Embed.Value.Float64s()
	for i := range g {
		// The first step of Adam is lr g/(|g|+eps): two steps would be twice that.
		want := before[i] - lr*g[i]/(math.Abs(g[i])+1e-8)
		if math.Abs(after[i]-want) > 1e-6 {
			t.Fatalf("element %d moved by %v, want %v (gradient %v)", i, after[i]-before[i], want-before[i], g[i])
		}
	}

	// The gradient is that of two tables with the same values, summed.
	for _, d := range floatTypes {
		w, ids, targets := noise(t, d, 5, 5, 0.5, 6, 4), idsOf(t, []int64{1, 1, 5}, 3), idsOf(t, []int64{0, 1, 5}, 3)
		copied := noise(t, d, 5, 5, 0.5, 6, 4)
		loss := func(tape *autograd.Tape, in, out *tensor.Tensor) *autograd.Var {
			h := ops.Tanh(ops.Embedding(tape.Watch(in), tape.Const(ids)))
			return ops.CrossEntropy(ops.Linear(h, tape.Watch(out), nil), tape.Const(targets), ops.MeanOfCounted, ops.IgnoreIndex)
		}
		tied := backward(t, loss(newTape(t), w, w), nil, w)[0]
		apart := backward(t, loss(newTape(t), w, copied), nil, w, copied)
		sum := make([]float64, len(tied))
		for i := range sum {
			sum[i] = apart[0][i] + apart[1][i]
		}
		if err := near(d, tied, sum, largest(apart...)); err != nil {
			t.Errorf("%v: %v", d, err)
		}
	}
}

func TestFullyMaskedRow(t *testing.T) {
	for _, d := range floatTypes {
		q, k, v := noise(t, d, 1, 1, 1, 1, 2, 3, 4), noise(t, d, 1, 2, 1, 1, 2, 3, 4), noise(t, d, 1, 3, 1, 1, 2, 3, 4)
		mask := idsOf(t, []int64{1, 1, 0, 0, 0, 0, 1, 0, 1}, 3, 3) // query 1 sees nothing
		tape := newTape(t)
		y := ops.Attention(tape.Watch(q), tape.Watch(k), tape.Watch(v), ops.AttentionOptions{Mask: tape.Const(mask)})
		out := numbersOf(t, y)
		g := backward(t, y, noise(t, d, 1, 4, 1, 1, 2, 3, 4), q, k, v)
		for _, x := range append(g, out) {
			if !allFinite(x) {
				t.Fatalf("%v: not finite: %v", d, x)
			}
		}
		for head := range 2 {
			row := out[head*12+4 : head*12+8]
			gq := g[0][head*12+4 : head*12+8]
			if !slices.Equal(row, constant(4, 0)) || !slices.Equal(gq, constant(4, 0)) {
				t.Errorf("%v: the masked row is %v, its gradient %v", d, row, gq)
			}
			if slices.Equal(out[head*12:head*12+4], constant(4, 0)) {
				t.Errorf("%v: a row that sees keys is zero", d)
			}
		}
		// More queries than keys: causal, the first see nothing.
		tape = newTape(t)
		q2 := noise(t, d, 1, 5, 1, 1, 2, 5, 4)
		y = ops.Attention(tape.Watch(q2), tape.Watch(k), tape.Watch(v), ops.AttentionOptions{Causal: true})
		out = numbersOf(t, y)
		g = backward(t, y, noise(t, d, 1, 6, 1, 1, 2, 5, 4), q2, k, v)
		for _, x := range append(g, out) {
			if !allFinite(x) {
				t.Fatalf("%v causal: not finite: %v", d, x)
			}
		}
		if !slices.Equal(out[:8], constant(8, 0)) || slices.Equal(out[8:12], constant(4, 0)) {
			t.Errorf("%v causal: %v", d, out[:12])
		}
	}
}

// At +-20 the tanh is 1 to the last bit: in every place of a vector, among
// numbers that are not.
func TestTanhGELUInEveryLane(t *testing.T) {
	for _, d := range floatTypes {
		for _, n := range []int{1, 3, 8, 17, 33, 67} {
			for lane := range n {
				for _, x := range []float64{20, -20, 400, -400} {
					data := constant(n, 0.5)
					data[lane] = x
					in := hostOf(t, d, data, n)
					tape := newTape(t)
					y := ops.GELUTanh(tape.Watch(in))
					out := numbersOf(t, y)
					g := backward(t, y, hostOf(t, d, constant(n, 1), n), in)[0]
					value, slope := x, 1.0
					if x < 0 { // less than any float32, if not nothing
						value, slope = 0, 0
					}
					if !(math.Abs(out[lane]-value) < 1e-200 && math.Abs(g[lane]-slope) < 1e-200) {
						t.Fatalf("%v lane %d of %d: gelu(%v) is %v, derivative %v", d, lane, n, x, out[lane], g[lane])
					}
					for i := range out {
						if i != lane && (math.Abs(out[i]-0.345714) > 0.002 || math.Abs(g[i]-0.867370) > 0.004) {
							t.Fatalf("%v lane %d of %d beside %v: %v, derivative %v", d, i, n, x, out[i], g[i])
						}
					}
					tape.Release()
				}
			}
		}
	}
}

func TestCrossEntropyOfLargeLogits(t *testing.T) {
	for _, d := range floatTypes {
		logits := hostOf(t, d, []float64{-431, 279, 427}, 1, 3)
		rounded, _ := logits.Float64s() // -431, 279 and 427 are not all bfloat16
		for target, want := range []float64{rounded[2] - rounded[0], rounded[2] - rounded[1], 0} {
			tape := newTape(t)
			loss := ops.CrossEntropy(tape.Watch(logits), tape.Const(idsOf(t, []int64{int64(target)}, 1)), ops.MeanOfCounted, ops.IgnoreIndex)
			if loss.DType() != d.Wide() {
				t.Errorf("the loss of %v is %v", d, loss.DType())
			}
			if got, err := loss.Item(); err != nil || math.Abs(got-want) > 1e-6*want+1e-12 {
				t.Errorf("%v target %d: %v, want %v; %v", d, target, got, want, err)
			}
			wantGrad := []float64{0, 0, 1}
			wantGrad[target]--
			if g := backward(t, loss, nil, logits)[0]; !allFinite(g) || math.Abs(g[0]-wantGrad[0])+math.Abs(g[1]-wantGrad[1])+math.Abs(g[2]-wantGrad[2]) > 1e-30 {
				t.Errorf("%v target %d: gradient %v, want %v", d, target, g, wantGrad)
			}
		}
	}
	// The loss of 16-bit logits has the digits that their own type has not.
	logits := hostOf(t, tensor.BFloat16, constant(1000, 1), 1, 1000)
	tape := newTape(t)
	loss := ops.CrossEntropy(tape.Watch(logits), tape.Const(idsOf(t, []int64{7}, 1)), ops.MeanOfCounted, ops.IgnoreIndex)
	if got, err := loss.Item(); err != nil || math.Abs(got-math.Log(1000)) > 1e-6 {
		t.Errorf("%v, want log 1000 = %v; %v", got, math.Log(1000), err)
	}
}

func TestNormOfZeroRowsAndOneColumn(t *testing.T) {
	norms := map[string]func(x, w, b *autograd.Var) *autograd.Var{
		"rms norm":   func(x, w, b *autograd.Var) *autograd.Var { return ops.RMSNorm(x, w, 1e-6) },
		"layer norm": func(x, w, b *autograd.Var) *autograd.Var { return ops.LayerNorm(x, w, b, 1e-6) },
	}
	for name, norm := range norms {
		for _, d := range floatTypes {
			for _, width := range []int{1, 2, 7, 64} {
				data := constant(3*width, 0)
				for i := range width {
					data[width+i] = float64(i) + 1 // the row between two zero rows
				}
				x, w, b := hostOf(t, d, data, 3, width), hostOf(t, d, constant(width, 2), width), hostOf(t, d, constant(width, 0.5), width)
				tape := newTape(t)
				y := norm(tape.Watch(x), tape.Watch(w), tape.Watch(b))
				out := numbersOf(t, y)
				of := []*tensor.Tensor{x, w, b}
				if name == "rms norm" {
					of = of[:2]
				}
				g := backward(t, y, hostOf(t, d, constant(3*width, 1), 3, width), of...)
				for _, v := range append(g, out) {
					if !allFinite(v) {
						t.Fatalf("%s %v of width %d: not finite: %v", name, d, width, v)
					}
				}
				zero, zeroGrad := 0.5, 0.0
				if name == "rms norm" {
					zero, zeroGrad = 0, 2/math.Sqrt(1e-6)
				}
				for i := range width {
					if out[i] != zero || out[2*width+i] != zero {
						t.Errorf("%s %v of a zero row of width %d: %v", name, d, width, out)
					}
					if math.Abs(g[0][i]-zeroGrad) > 0.005*zeroGrad+1e-9 {
						t.Errorf("%s %v width %d: the gradient of a zero row is %v, want %v", name, d, width, g[0][i], zeroGrad)
					}
				}
				if width == 1 {
					want := map[string]float64{"rms norm": 2, "layer norm": 0.5}[name]
					if math.Abs(out[1]-want) > 0.01 || math.Abs(g[0][1]) > 0.01 {
						t.Errorf("%s %v of width 1: %v, gradient %v", name, d, out[1], g[0][1])
					}
				}
			}
		}
	}
}

// stridedSeeds are the ways in which a seed gradient may lie.
func stridedSeeds(t *testing.T, d tensor.DType, shape ...int) map[string]*tensor.Tensor {
	view := viewOf(t)
	rank := len(shape)
	reversed, axes := make([]int, rank), make([]int, rank)
	for i := range shape {
		reversed[i], axes[i] = shape[rank-1-i], rank-1-i
	}
	larger := slices.Clone(shape)
	larger[rank-1] += 3
	last := append(slices.Repeat([]int{1}, rank-1), shape[rank-1])
	return map[string]*tensor.Tensor{
		"one number": view(noise(t, d, 9, 1, 1).Expand(shape...)),
		"one row":    view(noise(t, d, 9, 2, 1, last...).Expand(shape...)),
		"permuted":   view(noise(t, d, 9, 3, 1, reversed...).Permute(axes...)),
		"sliced":     view(noise(t, d, 9, 4, 1, larger...).Slice(-1, 2, 2+shape[rank-1])),
	}
}

func denseCopy(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	v, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return hostOf(t, x.DType(), v, x.Shape()...)
}

func TestStridedGradH(t *testing.T) {
	for _, d := range floatTypes {
		var blocks []*tensor.Tensor
		for i := range 3 {
			blocks = append(blocks, noise(t, d, 8, uint64(i), 1, 2, 3, 5))
		}
		w, gamma := noise(t, d, 8, 10, 0.5, 5), noise(t, d, 8, 11, 0.5, 5)
		all := append(slices.Clone(blocks), w, gamma)
		for name, seed := range stridedSeeds(t, d, 2, 3, 5) {
			for kind, apply := range map[string]func(blockattnres.Inputs, ...blockattnres.Option) *autograd.Var{"fused": blockattnres.Apply, "decomposed": blockattnres.Decomposed} {
				run := func(seed *tensor.Tensor) [][]float64 {
					tape := newTape(t)
					in := blockattnres.Inputs{PartialBlock: tape.Watch(blocks[2]), ProjWeight: tape.Watch(w), RMSNormGamma: tape.Watch(gamma)}
					for _, b := range blocks[:2] {
						in.Blocks = append(in.Blocks, tape.Watch(b))
					}
					return backward(t, apply(in), seed, all...)
				}
				got, want := run(seed), run(denseCopy(t, seed))
				for i := range got {
					if err := near(d, got[i], want[i], largest(want[i])); err != nil {
						t.Errorf("%s %v %s: gradient %d: %v", kind, d, name, i, err)
					}
				}
			}
			// The two functions without a tape.
			tape := newTape(t)
			in := blockattnres.Tensors{Blocks: blocks[:2], PartialBlock: blocks[2], ProjWeight: w, RMSNormGamma: gamma}
			out, err := blockattnres.Forward(tape.Stream, in, blockattnres.Caches{RMS: true, Alpha: true})
			if err != nil {
				t.Fatal(err)
			}
			var results [2][][]uint64
			for i, g := range []*tensor.Tensor{seed, denseCopy(t, seed)} {
				grads, err := blockattnres.Backward(tape.Stream, g, in, out.Alpha, out.RMS)
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range append(grads.Blocks, grads.PartialBlock, grads.ProjWeight, grads.RMSNormGamma) {
					host, err := tape.Download(x)
					if err != nil {
						t.Fatal(err)
					}
					bits, _ := host.Bits()
					results[i] = append(results[i], bits)
				}
			}
			for i := range results[0] {
				if !slices.Equal(results[0][i], results[1][i]) {
					t.Errorf("%v %s: gradient %d is not that of the dense copy", d, name, i)
				}
			}
		}
	}
}

// onViews is every function of package ops, with the shapes of its operands and
// the numbers it takes.
var onViews = map[string]struct {
	shapes   [][]int
	positive bool
	apply    func(t *autograd.Tape, x []*autograd.Var) *autograd.Var
}{
	"Add":             {two, false, pair(ops.Add)},
	"Sub":             {two, false, pair(ops.Sub)},
	"Mul":             {two, false, pair(ops.Mul)},
	"Div":             {two, true, pair(ops.Div)},
	"Maximum":         {two, false, pair(ops.Maximum)},
	"Minimum":         {two, false, pair(ops.Minimum)},
	"SwiGLU":          {[][]int{{3, 4, 6}, {3, 4, 6}}, false, pair(ops.SwiGLU)},
	"MatMul":          {[][]int{{3, 4, 6}, {3, 6, 5}}, false, pair(ops.MatMul)},
	"Neg":             {one, false, single(ops.Neg)},
	"Abs":             {one, false, single(ops.Abs)},
	"Exp":             {one, false, single(ops.Exp)},
	"Log":             {one, true, single(ops.Log)},
	"Sqrt":            {one, true, single(ops.Sqrt)},
	"Rsqrt":           {one, true, single(ops.Rsqrt)},
	"Reciprocal":      {one, true, single(ops.Reciprocal)},
	"Square":          {one, false, single(ops.Square)},
	"Sin":             {one, false, single(ops.Sin)},
	"Cos":             {one, false, single(ops.Cos)},
	"Tanh":            {one, false, single(ops.Tanh)},
	"Erf":             {one, false, single(ops.Erf)},
	"Sigmoid":         {one, false, single(ops.Sigmoid)},
	"ReLU":            {one, false, single(ops.ReLU)},
	"GELU":            {one, false, single(ops.GELU)},
	"GELUTanh":        {one, false, single(ops.GELUTanh)},
	"SiLU":            {one, false, single(ops.SiLU)},
	"Clamp":           {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Clamp(x, -0.5, 0.7) })},
	"Pow":             {one, true, single(func(x *autograd.Var) *autograd.Var { return ops.Pow(x, 1.7) })},
	"AddScalar":       {one, false, number(ops.AddScalar)},
	"SubScalar":       {one, false, number(ops.SubScalar)},
	"MulScalar":       {one, false, number(ops.MulScalar)},
	"DivScalar":       {one, false, number(ops.DivScalar)},
	"MaximumScalar":   {one, false, number(ops.MaximumScalar)},
	"MinimumScalar":   {one, false, number(ops.MinimumScalar)},
	"SubFromScalar":   {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.SubFromScalar(0.3, x) })},
	"DivIntoScalar":   {one, true, single(func(x *autograd.Var) *autograd.Var { return ops.DivIntoScalar(0.3, x) })},
	"Sum":             {one, false, over(ops.Sum)},
	"Mean":            {one, false, over(ops.Mean)},
	"Max":             {one, false, over(ops.Max)},
	"Min":             {one, false, over(ops.Min)},
	"LogSumExp":       {one, false, over(ops.LogSumExp)},
	"Var":             {one, false, over(func(x *autograd.Var, o ops.Axes) *autograd.Var { return ops.Var(x, o, 1) })},
	"Softmax":         {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Softmax(x, 1) })},
	"LogSoftmax":      {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.LogSoftmax(x, -1) })},
	"Cast":            {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Cast(x, tensor.Float32) })},
	"Reshape":         {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Reshape(x, 6, 12) })},
	"Permute":         {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Permute(x, 1, -1, 0) })},
	"Transpose":       {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Transpose(x, 0, 2) })},
	"Slice":           {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Slice(x, 1, 1, 3) })},
	"Select":          {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Select(x, -1, -2) })},
	"Unsqueeze":       {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Unsqueeze(x, 1) })},
	"Squeeze":         {[][]int{{3, 1, 5}}, false, single(func(x *autograd.Var) *autograd.Var { return ops.Squeeze(x, 1) })},
	"Expand":          {[][]int{{3, 1, 5}}, false, single(func(x *autograd.Var) *autograd.Var { return ops.Expand(x, 2, 3, 4, 5) })},
	"RotaryEmbedding": {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.RotaryEmbedding(x, 10000, 2) })},
	"Dropout":         {one, false, single(func(x *autograd.Var) *autograd.Var { return ops.Dropout(x, 0.3, random.Source{Seed: 1}) })},
	"Concat":          {[][]int{{3, 4, 6}, {3, 2, 6}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return ops.Concat(1, x...) }},
	"Stack":           {[][]int{{3, 4, 6}, {3, 4, 6}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return ops.Stack(-1, x...) }},
	"RMSNorm":         {[][]int{{3, 4, 6}, {6}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return ops.RMSNorm(x[0], x[1], 1e-6) }},
	"LayerNorm":       {[][]int{{3, 4, 6}, {6}, {6}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return ops.LayerNorm(x[0], x[1], x[2], 1e-6) }},
	"Linear":          {[][]int{{3, 4, 6}, {5, 6}, {5}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return ops.Linear(x[0], x[1], x[2]) }},
	"Attention": {[][]int{{2, 4, 3, 6}, {2, 2, 5, 6}, {2, 2, 5, 4}}, false, func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var {
		return ops.Attention(x[0], x[1], x[2], ops.AttentionOptions{Causal: true})
	}},
	"Where": {two, false, func(t *autograd.Tape, x []*autograd.Var) *autograd.Var {
		return ops.Where(t.Const(bits(4, 6)), x[0], x[1])
	}},
	"MaskedFill": {one, false, func(t *autograd.Tape, x []*autograd.Var) *autograd.Var {
		return ops.MaskedFill(x[0], t.Const(bits(4, 6)), 7)
	}},
	"Embedding": {[][]int{{5, 6}}, false, func(t *autograd.Tape, x []*autograd.Var) *autograd.Var {
		return ops.Embedding(x[0], t.Const(bits(4, 3)))
	}},
	"CrossEntropy": {[][]int{{4, 3, 6}}, false, func(t *autograd.Tape, x []*autograd.Var) *autograd.Var {
		return ops.CrossEntropy(x[0], t.Const(bits(4, 3)), ops.PerTarget, ops.IgnoreIndex)
	}},
}

var one, two = [][]int{{3, 4, 6}}, [][]int{{3, 4, 6}, {4, 1}}

func single(f func(*autograd.Var) *autograd.Var) func(*autograd.Tape, []*autograd.Var) *autograd.Var {
	return func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return f(x[0]) }
}

func number(f func(*autograd.Var, float64) *autograd.Var) func(*autograd.Tape, []*autograd.Var) *autograd.Var {
	return func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return f(x[0], 0.3) }
}

func pair(f func(a, b *autograd.Var) *autograd.Var) func(*autograd.Tape, []*autograd.Var) *autograd.Var {
	return func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return f(x[0], x[1]) }
}

func over(f func(*autograd.Var, ops.Axes) *autograd.Var) func(*autograd.Tape, []*autograd.Var) *autograd.Var {
	return func(_ *autograd.Tape, x []*autograd.Var) *autograd.Var { return f(x[0], ops.Over(0, -1)) }
}

// bits is a permuted integer tensor (a,b) of zeros and ones.
func bits(a, b int) *tensor.Tensor {
	data := make([]int32, a*b)
	for i := range data {
		data[i] = int32(i * i % 7 % 2)
	}
	x, err := tensor.FromSlice(data, b, a)
	if err != nil {
		return nil
	}
	x, _ = x.Transpose(0, 1)
	return x
}

// views are the ways in which a tensor of one shape may lie; the numbers of
// each are its own.
func views(t *testing.T, d tensor.DType, stream uint64, positive bool, shape ...int) map[string]*tensor.Tensor {
	view := viewOf(t)
	rank := len(shape)
	reversed, axes, larger := make([]int, rank), make([]int, rank), make([]int, rank)
	for i := range shape {
		reversed[i], axes[i] = shape[rank-1-i], rank-1-i
		larger[i] = shape[i] + 2 + i
	}
	made := func(shape ...int) *tensor.Tensor {
		x := noise(t, d, 4, stream, 1, shape...)
		if positive {
			v, _ := x.Float64s()
			for i := range v {
				v[i] = 0.4 + math.Abs(v[i])
			}
			if err := x.SetFloat64s(v); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	sliced := made(larger...)
	for i, n := range shape {
		sliced = view(sliced.Slice(i, 1+i%2, 1+i%2+n))
	}
	both := slices.Clone(reversed)
	both[0] += 2
	first := slices.Clone(shape)
	first[0] = 1
	return map[string]*tensor.Tensor{
		"permuted":            view(made(reversed...).Permute(axes...)),
		"sliced":              sliced,
		"permuted and sliced": view(view(made(both...).Slice(0, 1, 1+reversed[0])).Permute(axes...)),
		"expanded":            view(made(first...).Expand(shape...)),
	}
}

// exportedOps are the functions of package ops that give a Var.
func exportedOps(t *testing.T) []string {
	files, err := filepath.Glob("../ops/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results == nil {
				continue
			}
			if star, ok := fn.Type.Results.List[0].Type.(*ast.StarExpr); ok {
				if sel, ok := star.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "Var" {
					names = append(names, fn.Name.Name)
				}
			}
		}
	}
	return names
}

func TestEveryOpOnViews(t *testing.T) {
	names := exportedOps(t)
	if len(names) < 50 {
		t.Fatalf("only %d operations were found", len(names))
	}
	for _, name := range names {
		if _, ok := onViews[name]; !ok {
			t.Errorf("ops.%s is not tried on views", name)
		}
	}
	for name, c := range onViews {
		if !slices.Contains(names, name) {
			t.Errorf("ops.%s is tried and does not exist", name)
		}
		for _, d := range floatTypes {
			for i := range c.shapes {
				for kind, v := range views(t, d, uint64(i), c.positive, c.shapes[i]...) {
					compareWithDense(t, fmt.Sprintf("%s %v, operand %d %s", name, d, i, kind), d, c.shapes, i, v, c.positive, c.apply)
				}
			}
		}
	}
}

// compareWithDense applies an operation with operand i as a view and as its dense copy.
func compareWithDense(t *testing.T, what string, d tensor.DType, shapes [][]int, i int, v *tensor.Tensor, positive bool, apply func(*autograd.Tape, []*autograd.Var) *autograd.Var) {
	t.Helper()
	run := func(x *tensor.Tensor) [][]float64 {
		tape := newTape(t)
		defer tape.Release()
		in := make([]*tensor.Tensor, len(shapes))
		vars := make([]*autograd.Var, len(shapes))
		for j, shape := range shapes {
			in[j] = x
			if j != i {
				in[j] = denseCopy(t, views(t, d, uint64(j), positive, shape...)["sliced"])
			}
			vars[j] = tape.Watch(in[j])
		}
		y := apply(tape, vars)
		if y.Err() != nil {
			t.Fatalf("%s: %v", what, y.Err())
		}
		out := numbersOf(t, y)
		return append(backward(t, y, noise(t, y.DType(), 4, 99, 1, y.Shape()...), in...), out)
	}
	got, want := run(v), run(denseCopy(t, v))
	for k := range got {
		if err := near(d, got[k], want[k], largest(want[k])); err != nil {
			which := fmt.Sprintf("gradient %d", k)
			if k == len(got)-1 {
				which = "result"
			}
			t.Errorf("%s: %s: %v", what, which, err)
		}
	}
}

// The same for the fused operator, whose results are those of the copy to the bit.
func TestBlockAttnResOnViews(t *testing.T) {
	for _, d := range floatTypes {
		for kind, v := range views(t, d, 1, false, 2, 3, 5) {
			run := func(x *tensor.Tensor) [][]float64 {
				tape := newTape(t)
				other, w, gamma := noise(t, d, 6, 1, 1, 2, 3, 5), noise(t, d, 6, 2, 1, 5), noise(t, d, 6, 3, 1, 5)
				y := blockattnres.Apply(blockattnres.Inputs{Blocks: []*autograd.Var{tape.Watch(x), tape.Watch(other)}, ProjWeight: tape.Watch(w), RMSNormGamma: tape.Watch(gamma)})
				out := numbersOf(t, y)
				return append(backward(t, y, noise(t, d, 6, 4, 1, 2, 3, 5), x, other, w, gamma), out)
			}
			got, want := run(v), run(denseCopy(t, v))
			for k := range got {
				if !slices.Equal(got[k], want[k]) {
					t.Errorf("%v %s: result %d is not that of the dense copy", d, kind, k)
				}
			}
		}
	}
}
