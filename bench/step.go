package main

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// The sizes of the small GPT: LayerNorm, learned positions, tanh-GELU of four
// times the width, a head tied to the embedding.
const (
	gptLayers  = 6
	gptDim     = 384
	gptHeads   = 6
	gptContext = 256
	gptBatch   = 12
	gptVocab   = 96
)

// gpt is its parameters.
type gpt struct {
	params          []optim.Param
	embed, position *tensor.Tensor
	layers          [gptLayers]struct {
		norm1, bias1, norm2, bias2 *tensor.Tensor
		heads, headBias            [3]*tensor.Tensor // of q, k and v
		out, outBias               *tensor.Tensor
		up, upBias, down, downBias *tensor.Tensor
	}
	norm, bias *tensor.Tensor
}

func newGPT(d tensor.DType) (*gpt, error) {
	m := &gpt{}
	var err error
	param := func(deviation, value float64, shape ...int) *tensor.Tensor {
		src := random.Source{Seed: 1, Stream: uint64(len(m.params))}
		x := make([]float64, tensor.Shape(shape).Len())
		for i := range x {
			x[i] = value
			if deviation > 0 {
				x[i] += deviation * src.Normal(uint64(i))
			}
		}
		t, e := tensor.FromFloat64s(d, x, shape...)
		if e != nil {
			err = e
		}
		m.params = append(m.params, optim.Param{Value: t, Decay: len(shape) > 1})
		return t
	}
	const c = gptDim
	m.embed, m.position = param(0.02, 0, gptVocab, c), param(0.02, 0, gptContext, c)
	for i := range m.layers {
		l := &m.layers[i]
		l.norm1, l.bias1, l.norm2, l.bias2 = param(0, 1, c), param(0, 0, c), param(0, 1, c), param(0, 0, c)
		for k := range l.heads {
			l.heads[k], l.headBias[k] = param(0.02, 0, c, c), param(0, 0, c)
		}
		l.out, l.outBias = param(0.02, 0, c, c), param(0, 0, c)
		l.up, l.upBias, l.down, l.downBias = param(0.02, 0, 4*c, c), param(0, 0, 4*c), param(0.02, 0, c, 4*c), param(0, 0, c)
	}
	m.norm, m.bias = param(0, 1, c), param(0, 0, c)
	return m, err
}

func (m *gpt) loss(t *autograd.Tape, ids, targets *autograd.Var) *autograd.Var {
	const eps = 1e-5
	w := t.Watch
	x := ops.Add(ops.Embedding(w(m.embed), ids), w(m.position))
	heads := func(y *autograd.Var, weight, bias *tensor.Tensor) *autograd.Var { // (B,T,C) to (B,H,T,W)
		y = ops.Reshape(ops.Linear(y, w(weight), w(bias)), gptBatch, gptContext, gptHeads, gptDim/gptHeads)
		return ops.Transpose(y, 1, 2)
	}
	for i := range m.layers {
		l := &m.layers[i]
		y := ops.LayerNorm(x, w(l.norm1), w(l.bias1), eps)
		var qkv [3]*autograd.Var
		for k := range qkv {
			qkv[k] = heads(y, l.heads[k], l.headBias[k])
		}
		y = ops.Attention(qkv[0], qkv[1], qkv[2], ops.AttentionOptions{Causal: true})
		y = ops.Reshape(ops.Transpose(y, 1, 2), gptBatch, gptContext, gptDim)
		x = ops.Add(x, ops.Linear(y, w(l.out), w(l.outBias)))
		y = ops.GELUTanh(ops.Linear(ops.LayerNorm(x, w(l.norm2), w(l.bias2), eps), w(l.up), w(l.upBias)))
		x = ops.Add(x, ops.Linear(y, w(l.down), w(l.downBias)))
	}
	logits := ops.Linear(ops.LayerNorm(x, w(m.norm), w(m.bias), eps), w(m.embed), nil)
	return ops.CrossEntropy(logits, targets, ops.MeanOfCounted, ops.IgnoreIndex)
}

// trainer runs steps of forward, backward, clipping and AdamW.
type trainer struct {
	dev          *cpu.Device
	loss         func(t *autograd.Tape, ids, targets *autograd.Var) *autograd.Var
	sum          *optim.Accumulator
	opt          *optim.AdamW
	ids, targets *tensor.Tensor
}

func newTrainer(dev *cpu.Device, params []optim.Param, vocab, batch, context int, loss func(t *autograd.Tape, ids, targets *autograd.Var) *autograd.Var) (*trainer, error) {
	tr := &trainer{dev: dev, loss: loss}
	var err error
	if tr.sum, err = optim.NewAccumulator(dev, params); err != nil {
		return nil, err
	}
	if tr.opt, err = optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 0.01}); err != nil {
		return nil, err
	}
	src := random.Source{Seed: 2}
	for k, to := range []**tensor.Tensor{&tr.ids, &tr.targets} {
		x := make([]int32, batch*context)
		for i := range x {
			x[i] = int32(src.Intn(uint64(k*len(x)+i), vocab))
		}
		if *to, err = tensor.FromSlice(x, batch, context); err != nil {
			return nil, err
		}
	}
	return tr, nil
}

func (tr *trainer) step(ctx context.Context) error {
	if err := tr.sum.Reset(); err != nil {
		return err
	}
	t := autograd.NewTape(ctx, tr.dev)
	defer t.Release()
	grads, err := t.Backward(tr.loss(t, t.Const(tr.ids), t.Const(tr.targets)))
	if err != nil {
		return err
	}
	if err := tr.sum.Add(grads); err != nil {
		return err
	}
	norm, err := tr.sum.Norm()
	if err != nil {
		return err
	}
	if math.IsNaN(norm) {
		return fmt.Errorf("the gradient is not a number")
	}
	if norm > 1 {
		if err := tr.sum.Scale(1 / norm); err != nil {
			return err
		}
	}
	return tr.opt.Step(tr.sum, 3e-4)
}

// steps measures whole training steps.
func (b *bench) steps() {
	for _, d := range []struct {
		name  string
		dtype tensor.DType
	}{{"fp32", tensor.Float32}, {"bf16", tensor.BFloat16}} {
		name, allocations := "train_step/"+d.name, "train_step/allocations"
		if d.dtype != tensor.Float32 {
			allocations = name
		}
		if !b.wants(name, allocations) {
			continue
		}
		dev, peak := b.dev, b.peak["fp32"]
		if d.dtype == tensor.BFloat16 && b.peak["bf16"] > 0 {
			dev, peak = cpu.New(cpu.Threads(b.threads), cpu.FastBFloat16()), b.peak["bf16"]
			defer dev.Close()
		}
		m, err := newGPT(d.dtype)
		if err != nil {
			b.fail(err)
			return
		}
		tr, err := newTrainer(dev, m.params, gptVocab, gptBatch, gptContext, m.loss)
		if err != nil {
			b.fail(err)
			return
		}
		seconds := b.median(func() error { return tr.step(b.ctx) })
		const tokens = gptBatch * gptContext
		b.report(figure{Name: name, Value: tokens / seconds, Unit: "tokens/s", Limit: peak / gptFlops(), flops: tokens * gptFlops(), seconds: seconds})
		if allocations != name && b.wants(allocations) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			const times = 5
			for range times {
				b.fail(tr.step(b.ctx))
			}
			runtime.ReadMemStats(&after)
			b.report(figure{Name: allocations, Value: float64(after.Mallocs-before.Mallocs) / times, Unit: "count", Limit: 50})
		}
	}
	b.blockOverPreNorm()
}

// gptFlops is the arithmetic of a token: six for each weight, and attention's
// two products, of which causality leaves half, forward and twice backward,
// where the weights are computed once more.
func gptFlops() float64 {
	const weights = gptLayers*12*gptDim*gptDim + gptVocab*gptDim
	const attention = gptLayers * 7 * gptDim * gptContext
	return 6*weights + attention
}

// blockOverPreNorm is the time of a step of a Block Attention Residuals model
// over that of the prenorm model of the same sizes, step by step in turn.
func (b *bench) blockOverPreNorm() {
	const name = "train_step/block_over_prenorm"
	if !b.wants(name) {
		return
	}
	var tr [2]*trainer
	for i, r := range []nn.Residual{nn.PreNorm, nn.Block} {
		m, err := nn.NewTransformer(nn.Config{Vocab: gptVocab, Layers: 6, Dim: gptDim, Heads: gptHeads, Residual: r, BlockSize: 4}, 1)
		if err != nil {
			b.fail(err)
			return
		}
		var params []optim.Param
		for _, p := range m.Parameters() {
			params = append(params, optim.Param{Value: p.Value, Decay: p.Decay})
		}
		if tr[i], err = newTrainer(b.dev, params, gptVocab, gptBatch, gptContext, m.Loss); err != nil {
			b.fail(err)
			return
		}
	}
	var ratios []float64
	for i := -1; i < b.repeat; i++ { // pairs, so that what else the machine does meets both
		var seconds [2]float64
		for k := range tr {
			seconds[k] = b.once(func() error { return tr[k].step(b.ctx) })
		}
		if i >= 0 {
			ratios = append(ratios, seconds[1]/seconds[0])
		}
	}
	b.report(figure{Name: name, Value: middle(ratios), Unit: "ratio", Limit: 1.05})
}
