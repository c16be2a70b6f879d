package ops

import (
	"context"
	"fmt"
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// AttentionOptions are the arguments of Attention that may be left out.
type AttentionOptions struct {
	Causal bool          // query i sees the keys up to i, aligned at the last key where there are more keys than queries
	Mask   *autograd.Var // integer, broadcast to (B,H,T,S): a key is seen where it is not 0
	Scale  *float64      // factor of the logits; nil is 1/sqrt(width)
}

// Attention is softmax(scale q k^T) v for q (B,H,T,W), k (B,G,S,W) and v
// (B,G,S,V), with H a multiple of G: H/G query heads share a key head (Ainslie
// et al., "GQA", 2023). The result is (B,H,T,V). A query that sees no key gives
// zeros and gets no gradient.
func Attention(q, k, v *autograd.Var, o AttentionOptions) *autograd.Var {
	const op = "attention"
	t, ok := begin(op, q, k, v)
	if !ok {
		return t.Dead()
	}
	if o.Mask != nil {
		if t, ok = beginMasked(op, "mask", o.Mask, q, k, v); !ok {
			return t.Dead()
		}
	}
	for i, x := range []*autograd.Var{q, k, v} {
		if x.Tensor().Rank() != 4 {
			return fail(t, op, "qkv"[i:i+1], x.Shape().String(), "(batch,heads,T,width)", tensor.ErrRank)
		}
	}
	qs, ks, vs := q.Shape(), k.Shape(), v.Shape()
	if ks[0] != qs[0] || ks[3] != qs[3] || ks[1] == 0 || qs[1]%ks[1] != 0 {
		return fail(t, op, "k", ks.String(), fmt.Sprintf("batch, width and a divisor of the heads of a q of %v", qs), tensor.ErrShape)
	}
	if vs[0] != ks[0] || vs[1] != ks[1] || vs[2] != ks[2] {
		return fail(t, op, "v", vs.String(), fmt.Sprintf("batch, heads and length of a k of %v", ks), tensor.ErrShape)
	}
	scale := 1 / math.Sqrt(float64(max(qs[3], 1)))
	if o.Scale != nil {
		scale = *o.Scale
	}
	if math.IsNaN(scale) || math.IsInf(scale, 0) {
		return fail(t, op, "scale", number(scale), "a finite number", tensor.ErrValue)
	}
	if y := fusedAttention(t, q, k, v, o, scale); y != nil {
		return y
	}
	n := &attention{scale: scale, group: qs[1] / ks[1]}
	hide, err := hidden(t, o, qs, ks)
	if err != nil {
		return t.Fails(err)
	}
	n.q, n.k, n.v = q.Tensor(), k.Tensor(), v.Tensor()
	wide := q.DType().Wide()
	c := scratch{s: t.Stream}
	logits := c.keep(t.MatMul(wide, n.q, transposed(t.Stream, n.heads(t.Stream, n.k))))
	logits = c.keep(t.Unary(device.Unary{Func: device.MulScalar, A: scale}, wide, logits))
	for _, h := range hide {
		logits = c.keep(t.Where(wide, c.keep(h), c.keep(t.Full(wide, math.Inf(-1))), logits))
	}
	n.p = maskedSoftmax(t.Stream, logits, len(hide) > 0)
	out := t.MatMul(q.DType(), n.p, n.heads(t.Stream, n.v))
	c.done()
	return t.Record(out, n, q, k, v)
}

// fusedAttention is attention as the device's fused kernel; nil where there is
// none, where it declines, or with a mask, which it does not take.
func fusedAttention(t *autograd.Tape, q, k, v *autograd.Var, o AttentionOptions, scale float64) *autograd.Var {
	dev, ok := t.Device().(device.Attention)
	if !ok || o.Mask != nil {
		return nil
	}
	n := flashAttentions.of(flashAttention{args: device.AttentionArgs{Q: q.Tensor(), K: k.Tensor(), V: v.Tensor(), Scale: scale, Causal: o.Causal}})
	s := q.Shape()
	out := headsFirst(t.Stream, q.DType(), tensor.Shape{s[0], s[1], s[2], v.Shape()[3]})
	if q.WantsGrad() || k.WantsGrad() || v.WantsGrad() {
		n.lse = t.Empty(tensor.Float64, s[:3]...)
	}
	if t.Try(func(ctx context.Context, _ device.Device) error {
		return dev.AttentionForward(ctx, &n.args, out, n.lse)
	}) {
		t.Free(out, n.lse)
		return nil
	}
	return t.Record(out, n, q, k, v)
}

// headsFirst is a new tensor (B,H,T,W) that lies as (B,T,H,W), so that the heads
// of a token can be joined without a copy.
func headsFirst(s *device.Stream, d tensor.DType, shape tensor.Shape) *tensor.Tensor {
	x := s.Empty(d, shape[0], shape[2], shape[1], shape[3])
	return s.Transpose(x, 1, 2)
}

type flashAttention struct {
	room
	args device.AttentionArgs
	lse  *tensor.Tensor // (B,H,T) in float64
}

var flashAttentions nodes[flashAttention]

func (n *flashAttention) Done() { flashAttentions.done(n) }

func (n *flashAttention) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	out := n.give(nil, nil, nil)
	for i, x := range []*tensor.Tensor{n.args.Q, n.args.K, n.args.V} {
		if want[i] {
			out[i] = headsFirst(s, x.DType(), x.Shape())
		}
	}
	s.Run(func(ctx context.Context, dev device.Device) error {
		return dev.(device.Attention).AttentionBackward(ctx, &n.args, n.lse, g, out[0], out[1], out[2])
	})
	return out
}

// hidden is integer tensors that broadcast to (B,H,T,S), 1 where a key is not seen.
func hidden(t *autograd.Tape, o AttentionOptions, qs, ks tensor.Shape) ([]*tensor.Tensor, error) {
	var hide []*tensor.Tensor
	if rows, cols := qs[2], ks[2]; o.Causal && qs.Len() > 0 && ks.Len() > 0 { // else there is nothing to hide
		if !fits(t, "attention", "k", ks, rows, cols, 8) {
			return nil, t.Err()
		}
		m := make([]int64, rows*cols)
		for i := range rows {
			for j := range cols {
				if stopped(t, i*cols+j) {
					return nil, t.Err()
				}
				if j > i+cols-rows {
					m[i*cols+j] = 1
				}
			}
		}
		hide = append(hide, t.View(func() (*tensor.Tensor, error) { return uploadIDs(t, m).Reshape(rows, cols) }))
	}
	if o.Mask == nil {
		return hide, nil
	}
	full := tensor.Shape{qs[0], qs[1], qs[2], ks[2]}
	if _, err := o.Mask.Tensor().Expand(full...); err != nil {
		return nil, &tensor.ArgError{Op: "attention", Arg: "mask", Got: o.Mask.Shape().String(), Want: "a shape that expands to " + full.String(), Kind: tensor.ErrShape}
	}
	host, err := t.Download(o.Mask.Tensor())
	if err != nil {
		return nil, err
	}
	keep, err := host.Int64s()
	if err != nil {
		return nil, err
	}
	for i := range keep {
		if keep[i] == 0 {
			keep[i] = 1
		} else {
			keep[i] = 0
		}
	}
	shape := o.Mask.Shape()
	return append(hide, t.View(func() (*tensor.Tensor, error) { return uploadIDs(t, keep).Reshape(shape...) })), nil
}

// maskedSoftmax is the softmax over the last axis; a row whose keys are all hidden is zeros.
func maskedSoftmax(s *device.Stream, logits *tensor.Tensor, masked bool) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	if !masked || logits.Len() == 0 {
		return softmax(s, logits, logits.Rank()-1)
	}
	c := scratch{s: s}
	defer c.done()
	wide := logits.DType()
	top := c.keep(s.Reduce(device.Max, wide, logits, -1))
	// A finite bound turns a row of -Inf into exp(-Inf) = 0, whose sum 0 is then replaced by 1.
	top = c.keep(s.Unary(device.Unary{Func: device.Clamp, A: -largest(wide), B: math.Inf(1)}, wide, top))
	e := c.keep(s.Unary(device.Unary{Func: device.Exp}, wide, c.keep(s.Binary(device.Sub, wide, logits, top))))
	sum := c.keep(s.Reduce(device.Sum, wide, e, -1))
	none := c.keep(s.Binary(device.Equal, wide, sum, c.keep(s.Full(wide, 0))))
	return s.Binary(device.Div, wide, e, c.keep(s.Binary(device.Add, wide, sum, none)))
}

// attention, with p = softmax(scale q k^T), dp = g v^T and ds = p (dp - sum(dp p)):
// dq = scale ds k, dk = scale ds^T q, dv = p^T g, the latter summed over the
// query heads that share a key head.
type attention struct {
	q, k, v *tensor.Tensor
	p       *tensor.Tensor // (B,H,T,S) in the wide type
	scale   float64
	group   int // query heads to a key head
}

// heads repeats each key head for its query heads: (B,G,S,W) as (B,H,S,W).
func (n *attention) heads(s *device.Stream, x *tensor.Tensor) *tensor.Tensor {
	if n.group == 1 || s.Err() != nil {
		return x
	}
	sh := x.Shape()
	wide := s.View(func() (*tensor.Tensor, error) { return x.Unsqueeze(2) })
	wide = s.Expand(wide, sh[0], sh[1], n.group, sh[2], sh[3])
	return s.Reshape(wide, sh[0], sh[1]*n.group, sh[2], sh[3])
}

// fold sums the gradient of repeated heads: (B,H,S,W) to the shape of like.
func (n *attention) fold(s *device.Stream, g, like *tensor.Tensor) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	sh := like.Shape()
	grouped := s.Reshape(g, sh[0], sh[1], n.group, sh[2], sh[3])
	sum := s.Reduce(device.Sum, like.DType(), grouped, 2)
	return s.View(func() (*tensor.Tensor, error) { return sum.Squeeze(2) })
}

func (n *attention) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	d, wide := n.q.DType(), n.p.DType()
	keyGrad := func(a, b, like *tensor.Tensor) *tensor.Tensor {
		if n.group == 1 {
			return s.MatMul(d, a, b)
		}
		return n.fold(s, c.keep(s.MatMul(wide, a, b)), like)
	}
	out := make([]*tensor.Tensor, 3)
	if want[2] {
		out[2] = keyGrad(transposed(s, n.p), g, n.v)
	}
	if want[0] || want[1] {
		dp := c.keep(s.MatMul(wide, g, transposed(s, n.heads(s, n.v))))
		ds := c.keep(softmaxGrad(s, wide, dp, n.p, 3))
		ds = c.keep(s.Unary(device.Unary{Func: device.MulScalar, A: n.scale}, wide, ds))
		if want[0] {
			out[0] = s.MatMul(d, ds, n.heads(s, n.k))
		}
		if want[1] {
			out[1] = keyGrad(transposed(s, ds), n.q, n.k)
		}
	}
	return out
}
