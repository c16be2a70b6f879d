package blockattnres

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Inputs are the operands on a tape, of one floating-point dtype.
type Inputs struct {
	Blocks       []*autograd.Var // N of (B,T,D), 1 <= N <= 127
	PartialBlock *autograd.Var   // (B,T,D) or nil
	ProjWeight   *autograd.Var   // (D) or (1,D)
	RMSNormGamma *autograd.Var   // (D) or (1,D); nil only without RMSNorm
}

// vars are all operands in a fixed order; absent ones are nil.
func (in Inputs) vars() []*autograd.Var {
	return append(append([]*autograd.Var{}, in.Blocks...), in.PartialBlock, in.ProjWeight, in.RMSNormGamma)
}

func (in Inputs) tensors() Tensors {
	t := Tensors{PartialBlock: in.PartialBlock.Tensor(), ProjWeight: in.ProjWeight.Tensor(), RMSNormGamma: in.RMSNormGamma.Tensor()}
	for _, b := range in.Blocks {
		t.Blocks = append(t.Blocks, b.Tensor())
	}
	return t
}

// Option departs from the document's defaults: scale 1, eps 1e-6, RMSNorm on.
type Option func(*options)

type options struct {
	scale, eps float64
	rmsNorm    bool
}

// Scale is the factor of the logits; any finite number, 0 included.
func Scale(scale float64) Option { return func(o *options) { o.scale = scale } }

// Eps is added to the mean square under the root; finite and at least 0.
func Eps(eps float64) Option { return func(o *options) { o.eps = eps } }

// WithoutRMSNorm makes the keys the rows themselves; gamma is then not used.
func WithoutRMSNorm() Option { return func(o *options) { o.rmsNorm = false } }

func resolve(opts []Option) options {
	o := options{scale: 1, eps: 1e-6, rmsNorm: true}
	for _, f := range opts {
		if f != nil {
			f(&o)
		}
	}
	return o
}

// begin checks the operands on the tape.
func begin(in Inputs, o options) (*autograd.Tape, *device.BlockAttnResArgs, bool) {
	t, ok := autograd.Begin(op, in.vars()...)
	if !ok {
		return t, nil, false
	}
	a, err := in.tensors().args(o)
	if err == nil {
		err = device.CheckBlockAttnResForward(t.Device().Name(), a, nil)
	}
	t.Fail(err)
	return t, a, err == nil
}

// Apply is h, (B,T,D), as one node: the device's fused kernel, or Decomposed in
// float64 where the device has none or declines. The caches are kept only if
// some operand wants a gradient.
func Apply(in Inputs, opts ...Option) *autograd.Var {
	o := resolve(opts)
	t, a, ok := begin(in, o)
	if !ok {
		return t.Dead()
	}
	dev, fused := t.Device().(device.BlockAttnRes)
	if !fused {
		return decomposedWide(in, opts)
	}
	wants := false
	for _, v := range in.vars() {
		wants = wants || v.WantsGrad()
	}
	out := makeOutputs(t.Stream, a, Caches{RMS: wants && o.rmsNorm, Alpha: wants})
	declined := false
	t.Run(func(ctx context.Context, _ device.Device) error {
		err := dev.BlockAttnResForward(ctx, a, out)
		if declined = errors.Is(err, errors.ErrUnsupported); declined {
			return nil
		}
		return err
	})
	if declined {
		t.Free(out.H, out.RMS, out.Alpha)
		return decomposedWide(in, opts)
	}
	n := &node{args: *a, saved: *out}
	if in.ProjWeight != nil {
		n.weightShape = in.ProjWeight.Shape()
	}
	if in.RMSNormGamma != nil {
		n.gammaShape = in.RMSNormGamma.Shape()
	}
	return t.Record(out.H, n, in.vars()...)
}

// node is a fused call: its arguments and its caches.
type node struct {
	args                    device.BlockAttnResArgs
	saved                   device.BlockAttnResOut
	weightShape, gammaShape tensor.Shape
}

func (n *node) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	grads := make([]*tensor.Tensor, len(want))
	blocks := len(n.args.Blocks)
	d := n.args.Blocks[0].DType()
	for i, w := range want {
		switch {
		case !w:
		case i <= blocks:
			grads[i] = s.Empty(d, n.args.Blocks[0].Shape()...)
		case i == blocks+2 && !n.args.RMSNorm:
			grads[i] = s.Full(d, 0, n.gammaShape...) // not used: no influence
		default:
			grads[i] = s.Empty(d, n.args.ProjWeight.Len())
		}
	}
	to := &device.BlockAttnResGrads{Blocks: grads[:blocks], PartialBlock: grads[blocks], ProjWeight: grads[blocks+1]}
	if n.args.RMSNorm {
		to.RMSNormGamma = grads[blocks+2]
	}
	s.Run(func(ctx context.Context, dev device.Device) error {
		fused, ok := dev.(device.BlockAttnRes)
		if !ok {
			return fmt.Errorf("%s: the device has no fused backward: %w", op, errors.ErrUnsupported)
		}
		return fused.BlockAttnResBackward(ctx, &n.args, &n.saved, g, to)
	})
	shaped := func(g *tensor.Tensor, shape tensor.Shape) *tensor.Tensor {
		if g == nil || g.Shape().Equal(shape) {
			return g
		}
		return s.View(func() (*tensor.Tensor, error) { return g.Reshape(shape...) })
	}
	grads[blocks+1] = shaped(grads[blocks+1], n.weightShape)
	grads[blocks+2] = shaped(grads[blocks+2], n.gammaShape)
	return grads
}

// Parts are the values that Decomposed goes through.
type Parts struct {
	H     *autograd.Var // (B,T,D)
	RMS   *autograd.Var // (B,T,L,1); nil without RMSNorm
	Alpha *autograd.Var // (B,T,L)
}

// Decomposed is h by the definition, written in small ops in the operands' own
// dtype. In float64 it is the golden of a precision test, in the tensors' dtype
// the benchmark.
func Decomposed(in Inputs, opts ...Option) *autograd.Var { return Decompose(in, opts...).H }

// Decompose is Decomposed with the values on the way.
func Decompose(in Inputs, opts ...Option) Parts {
	o := resolve(opts)
	t, _, ok := begin(in, o)
	if !ok {
		return Parts{H: t.Dead(), RMS: t.Dead(), Alpha: t.Dead()}
	}
	sources := in.Blocks
	if in.PartialBlock != nil {
		sources = append(append([]*autograd.Var{}, sources...), in.PartialBlock)
	}
	width := in.Blocks[0].Shape()[2]
	var p Parts
	v := ops.Stack(2, sources...) // (B,T,L,D)
	k := v
	if o.rmsNorm {
		p.RMS = ops.Sqrt(ops.AddScalar(ops.Mean(ops.Square(v), ops.Over(-1).KeepDims()), o.eps))
		k = ops.Mul(ops.Div(v, p.RMS), ops.Reshape(in.RMSNormGamma, width))
	}
	logits := ops.Squeeze(ops.MatMul(k, ops.Reshape(in.ProjWeight, width, 1)), -1) // (B,T,L)
	if o.scale != 1 {
		logits = ops.MulScalar(logits, o.scale)
	}
	p.Alpha = ops.Softmax(logits, 2)
	p.H = ops.Squeeze(ops.MatMul(ops.Unsqueeze(p.Alpha, -2), v), -2)
	return p
}

// decomposedWide is Decomposed in float64, rounded once: squares of no finite
// row over- or underflow there.
func decomposedWide(in Inputs, opts []Option) *autograd.Var {
	d := in.Blocks[0].DType()
	if d == tensor.Float64 {
		return Decomposed(in, opts...)
	}
	return ops.Cast(Decomposed(in.Cast(tensor.Float64), opts...), d)
}

// Cast converts all operands; a gradient is converted back.
func (in Inputs) Cast(d tensor.DType) Inputs {
	cast := func(v *autograd.Var) *autograd.Var {
		if v == nil {
			return nil
		}
		return ops.Cast(v, d)
	}
	out := Inputs{PartialBlock: cast(in.PartialBlock), ProjWeight: cast(in.ProjWeight), RMSNormGamma: cast(in.RMSNormGamma)}
	for _, b := range in.Blocks {
		out.Blocks = append(out.Blocks, cast(b))
	}
	return out
}
