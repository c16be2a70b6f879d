package main

import (
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// part is something that a training step does beside matrix products, forward
// and backward: its inputs, all watched, and what is computed of them.
type part struct {
	name   string
	shapes []tensor.Shape
	call   func(in []*autograd.Var) *autograd.Var
	passes float64 // how often the first input's bytes are moved at least
}

// The sizes are those of the GPT of train_step, and for what a vocabulary's size
// decides, (2048,8192).
func partsOf(ids func(t *autograd.Tape, n, classes int) *autograd.Var) []part {
	const rows, d, vocab = gptBatch * gptContext, gptDim, 8192
	wide := tensor.Shape{rows, 4 * d}
	logits := tensor.Shape{2048, vocab}
	heads := tensor.Shape{gptBatch, gptHeads, gptContext, d / gptHeads}
	last := func(f func(x *autograd.Var, axis int) *autograd.Var) func(in []*autograd.Var) *autograd.Var {
		return func(in []*autograd.Var) *autograd.Var { return f(in[0], -1) }
	}
	return []part{
		{"add", []tensor.Shape{wide, wide}, func(in []*autograd.Var) *autograd.Var { return ops.Add(in[0], in[1]) }, 3},
		{"mul", []tensor.Shape{wide, wide}, func(in []*autograd.Var) *autograd.Var { return ops.Mul(in[0], in[1]) }, 8},
		{"gelu_tanh", []tensor.Shape{wide}, func(in []*autograd.Var) *autograd.Var { return ops.GELUTanh(in[0]) }, 5},
		{"gelu", []tensor.Shape{wide}, func(in []*autograd.Var) *autograd.Var { return ops.GELU(in[0]) }, 5},
		{"silu", []tensor.Shape{wide}, func(in []*autograd.Var) *autograd.Var { return ops.SiLU(in[0]) }, 5},
		{"sum_rows", []tensor.Shape{wide}, func(in []*autograd.Var) *autograd.Var { return ops.Sum(in[0], ops.Over(0)) }, 1},
		{"sum_columns", []tensor.Shape{wide}, func(in []*autograd.Var) *autograd.Var { return ops.Sum(in[0], ops.Over(1)) }, 1},
		{"layer_norm", []tensor.Shape{{rows, d}, {d}, {d}}, func(in []*autograd.Var) *autograd.Var { return ops.LayerNorm(in[0], in[1], in[2], 1e-5) }, 5},
		{"rms_norm", []tensor.Shape{{rows, d}, {d}}, func(in []*autograd.Var) *autograd.Var { return ops.RMSNorm(in[0], in[1], 1e-5) }, 5},
		{"rotary", []tensor.Shape{heads}, func(in []*autograd.Var) *autograd.Var { return ops.RotaryEmbedding(in[0], 10000, 0) }, 4},
		{"attention", []tensor.Shape{heads, heads, heads}, func(in []*autograd.Var) *autograd.Var {
			return ops.Attention(in[0], in[1], in[2], ops.AttentionOptions{Causal: true})
		}, 11},
		{"embedding", []tensor.Shape{{vocab, d}}, func(in []*autograd.Var) *autograd.Var {
			return ops.Embedding(in[0], ids(in[0].Tape(), rows, vocab))
		}, 1},
		{"softmax", []tensor.Shape{logits}, last(ops.Softmax), 5},
		{"log_softmax", []tensor.Shape{logits}, last(ops.LogSoftmax), 5},
		{"cross_entropy", []tensor.Shape{logits}, func(in []*autograd.Var) *autograd.Var {
			return ops.CrossEntropy(in[0], ids(in[0].Tape(), logits[0], vocab), ops.MeanOfCounted, ops.IgnoreIndex)
		}, 3},
	}
}

// parts measures each, forward and backward, beside the time of moving its
// bytes at the bandwidth of a copy, and AdamW on ten million weights.
func (b *bench) parts() {
	src := random.Source{Seed: 3}
	numbers := make([]float32, 1<<16)
	for i := range numbers {
		numbers[i] = float32(src.Normal(uint64(i)))
	}
	fill := func(d tensor.DType, shape tensor.Shape) *tensor.Tensor {
		x := make([]float32, shape.Len())
		for i := range x {
			x[i] = numbers[(i+7*len(x))%len(numbers)]
		}
		t, err := tensor.FromSlice(x, shape...)
		if err == nil {
			t, err = converted(b.dev, t, d)
		}
		b.fail(err)
		return t
	}
	targets := map[int]*tensor.Tensor{}
	ids := func(t *autograd.Tape, n, classes int) *autograd.Var {
		if targets[n] == nil {
			x := make([]int32, n)
			for i := range x {
				x[i] = int32(src.Intn(uint64(i), classes))
			}
			var err error
			targets[n], err = tensor.FromSlice(x, n)
			b.fail(err)
		}
		return t.Const(targets[n])
	}
	for _, d := range dtypes {
		if d.dtype != tensor.Float32 && d.dtype != tensor.BFloat16 {
			continue // what steps are measured in
		}
		for _, p := range partsOf(ids) {
			name := fmt.Sprintf("part/%s/%s", p.name, d.name)
			if !b.wants(name) {
				continue
			}
			var in []*tensor.Tensor
			for _, s := range p.shapes {
				in = append(in, fill(d.dtype, s))
			}
			var seed *tensor.Tensor
			step := func() error {
				t := autograd.NewTape(b.ctx, b.dev)
				defer t.Release()
				var vars []*autograd.Var
				for _, x := range in {
					vars = append(vars, t.Watch(x))
				}
				y := p.call(vars)
				if err := t.Err(); err != nil {
					return err
				}
				if seed == nil && y.Shape().Len() != 1 {
					seed = fill(d.dtype, y.Shape())
				}
				_, err := t.BackwardFrom(y, seed)
				return err
			}
			bytes := p.passes * float64(p.shapes[0].Len()*d.dtype.Size())
			seconds := b.median(step)
			b.report(figure{Name: name, Value: 1e3 * seconds, Unit: "ms", Limit: 1e3 * bytes / b.copy})
			b.dev.Trim()
		}
	}
	b.adamW()
}

func (b *bench) adamW() {
	const name, n = "part/adamw/fp32", 10 << 20
	if !b.wants(name) {
		return
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%1000) / 1000
	}
	w, err := tensor.FromSlice(x, 1024, n/1024)
	if err != nil {
		b.fail(err)
		return
	}
	params := []optim.Param{{Value: w, Decay: true}}
	sum, err := optim.NewAccumulator(b.dev, params)
	if err != nil {
		b.fail(err)
		return
	}
	opt, err := optim.NewAdamW(b.dev, params, optim.AdamWOptions{WeightDecay: 0.01})
	if err != nil {
		b.fail(err)
		return
	}
	t := autograd.NewTape(b.ctx, b.dev)
	defer t.Release()
	grads, err := t.Backward(ops.Sum(ops.Square(t.Watch(w)), ops.All()))
	if err == nil {
		err = sum.Add(grads)
	}
	if err != nil {
		b.fail(err)
		return
	}
	seconds := b.median(func() error { return opt.Step(sum, 1e-6) })
	b.report(figure{Name: name, Value: 1e3 * seconds, Unit: "ms", Limit: 1e3 * 7 * 4 * n / b.copy}) // four are read and three written
}
