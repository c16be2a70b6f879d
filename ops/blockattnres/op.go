package blockattnres

import (
	"context"
	"errors"
	"fmt"
	"math"

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

// dead is the result of a call that begin refused.
func dead(t *autograd.Tape, in Inputs) *autograd.Var {
	if t == nil { // no operand at all: what is wrong is a matter of the arguments alone
		return autograd.Failed(device.CheckBlockAttnResForward(tensor.Device{}, &device.BlockAttnResArgs{Blocks: in.tensors().Blocks}, nil))
	}
	return t.Dead()
}

// Apply is h, (B,T,D), as one node: the device's fused kernel, or Decomposed in
// float64 where the device has none or declines. The caches are kept only if
// some operand wants a gradient.
func Apply(in Inputs, opts ...Option) *autograd.Var {
	o := resolve(opts)
	t, a, ok := begin(in, o)
	if !ok {
		return dead(t, in)
	}
	if !o.rmsNorm {
		in.RMSNormGamma = nil // checked, not used
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
	if t.Try(func(ctx context.Context, _ device.Device) error { return dev.BlockAttnResForward(ctx, a, out) }) {
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
	return n.BackwardAdd(s, g, want, make([]*tensor.Tensor, len(want)))
}

// BackwardAdd adds the gradients of blocks that others read too to their sums.
func (n *node) BackwardAdd(s *device.Stream, g *tensor.Tensor, want []bool, sums []*tensor.Tensor) []*tensor.Tensor {
	grads := make([]*tensor.Tensor, len(want))
	blocks := len(n.args.Blocks)
	d := n.args.Blocks[0].DType()
	add := make([]bool, len(n.args.Sources()))
	for i, w := range want {
		switch {
		case !w:
		case i < len(add) && sums[i] != nil:
			grads[i], add[i] = sums[i], true
		case i <= blocks:
			grads[i] = s.Empty(d, n.args.Blocks[0].Shape()...)
		default:
			grads[i] = s.Empty(d, n.args.ProjWeight.Len())
		}
	}
	to := &device.BlockAttnResGrads{Blocks: grads[:blocks], PartialBlock: grads[blocks], ProjWeight: grads[blocks+1], RMSNormGamma: grads[blocks+2], Add: add}
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
		return s.Reshape(g, shape...)
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
// the benchmark, whose squares over- and underflow as they do there: in float16
// from rows of 256. Only float64, which must be right, divides rows whose
// squares leave it by their largest element.
func Decomposed(in Inputs, opts ...Option) *autograd.Var { return Decompose(in, opts...).H }

// Decompose is Decomposed with the values on the way.
func Decompose(in Inputs, opts ...Option) Parts {
	o := resolve(opts)
	t, _, ok := begin(in, o)
	if !ok {
		return Parts{H: dead(t, in), RMS: dead(t, in), Alpha: dead(t, in)}
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
		k, p.RMS = normalised(t, v, o.eps)
		k = ops.Mul(k, ops.Reshape(in.RMSNormGamma, width))
	}
	logits := ops.Squeeze(ops.MatMul(k, ops.Reshape(in.ProjWeight, width, 1)), -1) // (B,T,L)
	if o.scale != 1 {
		logits = ops.MulScalar(logits, o.scale)
	}
	p.Alpha = ops.Softmax(logits, 2)
	p.H = ops.Squeeze(ops.MatMul(ops.Unsqueeze(p.Alpha, -2), v), -2)
	return p
}

// normalised is v / rms and rms = sqrt(mean(v^2) + eps) over the last axis.
func normalised(t *autograd.Tape, v *autograd.Var, eps float64) (k, rms *autograd.Var) {
	over := ops.Over(-1).KeepDims()
	scale := rowScale(t, v, eps)
	if scale == nil {
		rms = ops.Sqrt(ops.AddScalar(ops.Mean(ops.Square(v), over), eps))
		return ops.Div(v, rms), rms
	}
	// k does not depend on the scale, so it is a constant: rms/scale = sqrt(mean((v/scale)^2) + (sqrt(eps)/scale)^2)
	root := ops.Square(ops.Div(t.Const(t.Full(v.DType(), math.Sqrt(eps))), scale))
	v = ops.Div(v, scale)
	rms = ops.Sqrt(ops.Add(ops.Mean(ops.Square(v), over), root))
	return ops.Div(v, rms), ops.Mul(rms, scale)
}

// rowScale is, for float64 with some row that squares badly, the largest
// |element| of each row, (...,1), or the root of eps if that is larger; else nil.
func rowScale(t *autograd.Tape, v *autograd.Var, eps float64) *autograd.Var {
	if v.DType() != tensor.Float64 || v.Err() != nil || v.Shape().Len() == 0 {
		return nil
	}
	abs := t.Unary(device.Unary{Func: device.Abs}, tensor.Float64, v.Tensor())
	top := t.Reduce(device.Max, tensor.Float64, abs, -1)
	t.Free(abs)
	least := max(math.Sqrt(eps), math.SmallestNonzeroFloat64) // a row of zeros is 0/0 without eps, as the definition has it
	scale := t.Unary(device.Unary{Func: device.Clamp, A: least, B: math.MaxFloat64}, tensor.Float64, top)
	host, err := t.Download(scale)
	if err != nil {
		return nil
	}
	rows, err := host.Float64s()
	t.Fail(err)
	t.Free(top)
	for _, x := range rows {
		if x != least && !(x > 1e-140 && x < 1e140) {
			return t.Const(scale)
		}
	}
	t.Free(scale)
	return nil
}

// decomposedWide is Decomposed in float64, rounded once.
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
