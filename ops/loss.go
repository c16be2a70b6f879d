package ops

import (
	"context"
	"fmt"
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Reduction says how the losses of many targets become one.
type Reduction uint8

const (
	MeanOfCounted Reduction = iota // the mean over targets that are not ignored; NaN if all are
	SumOfAll                       // the sum
	PerTarget                      // no reduction: the shape of the targets, 0 where ignored
)

// IgnoreIndex is the target that counts for nothing where no other is named.
const IgnoreIndex = -100

// CrossEntropy is -log softmax(logits)[target] for logits (...,C) and integer
// targets (...). Targets equal to ignore get no loss and no gradient; any other
// outside 0..C-1 is an error. The loss of 16-bit logits is float32.
func CrossEntropy(logits, targets *autograd.Var, reduction Reduction, ignore int) *autograd.Var {
	const op = "cross entropy"
	t, ok := beginMasked(op, "targets", targets, logits)
	if !ok {
		return t.Dead()
	}
	x := logits.Tensor()
	if reduction > PerTarget {
		return fail(t, op, "reduction", fmt.Sprint(reduction), "one of this package", tensor.ErrValue)
	}
	if x.Rank() == 0 || x.Dim(-1) == 0 {
		return fail(t, op, "logits", x.Shape().String(), "(...,classes)", tensor.ErrShape)
	}
	if !targets.Shape().Equal(x.Shape()[:x.Rank()-1]) {
		return fail(t, op, "targets", targets.Shape().String(), x.Shape()[:x.Rank()-1].String(), tensor.ErrShape)
	}
	host, err := t.Download(targets.Tensor())
	if err != nil {
		return t.Dead()
	}
	ids, err := host.Int64s()
	if err != nil {
		return t.Fails(err)
	}
	classes, counted := x.Dim(-1), 0
	for i, id := range ids {
		switch {
		case id == int64(ignore):
			continue
		case id < 0 || id >= int64(classes):
			return fail(t, op, fmt.Sprintf("targets[%d]", i), fmt.Sprint(id), fmt.Sprintf("a class below %d", classes), tensor.ErrIndex)
		}
		counted++
	}
	if losses, n := fusedCrossEntropy(t, x, ids, reduction, ignore, counted); losses != nil {
		return t.Record(joined(t, losses, reduction, counted, targets.Shape()), n, targets, logits)
	}
	at := make([]int64, len(ids))       // where the target's logit lies among all
	weight := make([]float64, len(ids)) // 0 where ignored
	for i, id := range ids {
		at[i] = int64(i * classes)
		if id != int64(ignore) {
			weight[i], at[i] = 1, at[i]+id
			if reduction == MeanOfCounted {
				weight[i] /= float64(counted)
			}
		}
	}
	wide := x.DType().Wide()
	n := &crossEntropy{weight: uploadFloats(t, wide, weight, len(ids), 1), at: uploadIDs(t, at), dtype: x.DType(), shape: x.Shape(), per: reduction == PerTarget}
	n.x = rows(t.Stream, x)
	c := scratch{s: t.Stream}
	var losses *tensor.Tensor
	if len(ids) == 0 {
		n.top, n.sum = t.Empty(wide, 0, 1), t.Empty(wide, 0, 1)
		losses = n.sum
	} else {
		var shifted *tensor.Tensor
		shifted, n.top, n.sum = sumExp(t.Stream, n.x, []int{1}, math.Inf(1))
		t.Free(shifted)
		flat := t.Reshape(n.x, x.Len(), 1)
		picked := c.keep(t.Gather(flat, n.at))
		log := c.keep(t.Unary(device.Unary{Func: device.Log}, wide, n.sum))
		losses = c.keep(t.Binary(device.Sub, wide, log, c.keep(t.Binary(device.Sub, wide, picked, n.top))))
	}
	// A weight of 0 times an infinite loss would be NaN: ignored rows are set to 0 by selection.
	ignored := make([]int64, len(ids))
	for i, id := range ids {
		if id == int64(ignore) {
			ignored[i] = 1
		}
	}
	mask := c.keep(t.View(func() (*tensor.Tensor, error) { return uploadIDs(t, ignored).Reshape(len(ids), 1) }))
	losses = t.Where(wide, mask, c.keep(t.Full(wide, 0)), losses)
	n.ignored = mask
	c.temp = without(c.temp, mask)
	out := joined(t, losses, reduction, counted, targets.Shape())
	c.done()
	return t.Record(out, n, targets, logits)
}

// joined is the loss of the losses (N,1), which it takes.
func joined(t *autograd.Tape, losses *tensor.Tensor, reduction Reduction, counted int, targets tensor.Shape) *tensor.Tensor {
	if reduction == PerTarget {
		return t.Reshape(losses, targets...)
	}
	sum := t.Reduce(device.Sum, losses.DType(), losses)
	t.Free(losses)
	if reduction == MeanOfCounted {
		mean := t.Unary(device.Unary{Func: device.DivScalar, A: float64(counted)}, sum.DType(), sum)
		t.Free(sum)
		sum = mean
	}
	return scalar(t, sum)
}

// fusedCrossEntropy is the losses (N,1) by the device's fused kernel, and the
// node of their reduction; nil where there is no such kernel or it declines.
func fusedCrossEntropy(t *autograd.Tape, x *tensor.Tensor, ids []int64, reduction Reduction, ignore, counted int) (*tensor.Tensor, autograd.Node) {
	dev, ok := t.Device().(device.Softmax)
	if !ok || len(ids) == 0 {
		return nil, nil
	}
	// The targets are copied: who gave them may write the next ones before the backward.
	n := crossEntropies.of(wholeCrossEntropy{args: device.CrossEntropyArgs{X: rows(t.Stream, x), Targets: uploadIDs(t, ids), Ignore: ignore},
		stats: t.Empty(tensor.Float64, len(ids), 2), shape: x.Shape(), scale: 1, per: reduction == PerTarget})
	if reduction == MeanOfCounted {
		n.scale = 1 / float64(counted)
	}
	losses := t.Empty(x.DType().Wide(), len(ids), 1)
	if t.Try(func(ctx context.Context, _ device.Device) error {
		return dev.CrossEntropyForward(ctx, &n.args, losses, n.stats)
	}) {
		t.Free(losses, n.stats, n.args.Targets)
		if n.args.X.Memory() != x.Memory() {
			t.Free(n.args.X)
		}
		return nil, nil
	}
	return losses, n
}

// wholeCrossEntropy is the fused cross-entropy; see device.Softmax.
type wholeCrossEntropy struct {
	room
	args  device.CrossEntropyArgs
	stats *tensor.Tensor // (N,2) in float64
	shape tensor.Shape   // of the logits
	scale float64        // of each loss in the result
	per   bool
}

var crossEntropies nodes[wholeCrossEntropy]

func (n *wholeCrossEntropy) Done() { crossEntropies.done(n) }

func (n *wholeCrossEntropy) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	x := n.args.X
	if kept := (tensor.Shape{x.Dim(0), 1}); n.per {
		g = s.Reshape(g, kept...)
	} else {
		g = s.Expand(g, kept...)
	}
	dx := s.Empty(x.DType(), x.Shape()...)
	s.Run(func(ctx context.Context, dev device.Device) error {
		return dev.(device.Softmax).CrossEntropyBackward(ctx, &n.args, n.stats, g, n.scale, dx)
	})
	return n.give(nil, s.Reshape(dx, n.shape...))
}

func without(ts []*tensor.Tensor, x *tensor.Tensor) []*tensor.Tensor {
	out := ts[:0]
	for _, t := range ts {
		if t != x {
			out = append(out, t)
		}
	}
	return out
}

func scalar(t *autograd.Tape, x *tensor.Tensor) *tensor.Tensor {
	return t.Reshape(x)
}

func uploadFloats(t *autograd.Tape, d tensor.DType, x []float64, shape ...int) *tensor.Tensor {
	host, err := tensor.FromFloat64s(d, x, shape...)
	if err != nil {
		t.Fail(err)
		return nil
	}
	return t.Upload(host)
}

func uploadIDs(t *autograd.Tape, ids []int64) *tensor.Tensor {
	host, err := tensor.FromSlice(ids, len(ids))
	if err != nil {
		t.Fail(err)
		return nil
	}
	return t.Upload(host)
}

// crossEntropy: dx = (softmax(x) - onehot(target)) weight g, with the softmax as
// exp(x - top) / sum; see sumExp.
type crossEntropy struct {
	x        *tensor.Tensor // (n,C)
	top, sum *tensor.Tensor // (n,1) in the wide type
	weight   *tensor.Tensor // (n,1): 0 where ignored, else 1 or 1/counted
	ignored  *tensor.Tensor // (n,1): 1 where ignored
	at       *tensor.Tensor // (n): index of the target's logit among all
	dtype    tensor.DType
	shape    tensor.Shape // of the logits
	per      bool
}

func (n *crossEntropy) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	c := scratch{s: s}
	defer c.done()
	wide := n.sum.DType()
	if n.x.Dim(0) == 0 {
		return []*tensor.Tensor{nil, s.Empty(n.dtype, n.shape...)}
	}
	if n.per {
		g = s.Reshape(g, n.x.Dim(0), 1)
	}
	zero := c.keep(s.Full(wide, 0))
	factor := c.keep(s.Binary(device.Mul, wide, n.weight, g)) // (n,1)
	factor = c.keep(s.Where(wide, n.ignored, zero, factor))
	e := c.keep(s.Unary(device.Unary{Func: device.Exp}, wide, c.keep(s.Binary(device.Sub, wide, n.x, n.top))))
	dx := c.keep(s.Binary(device.Mul, wide, e, c.keep(s.Binary(device.Div, wide, factor, n.sum))))
	dx = c.keep(s.Where(wide, n.ignored, zero, dx)) // an ignored row may hold anything
	flat := s.Reshape(dx, dx.Len(), 1)
	minus := c.keep(s.Unary(device.Unary{Func: device.Neg}, wide, factor))
	s.Run(func(ctx context.Context, dev device.Device) error { return dev.ScatterAdd(ctx, flat, n.at, minus) })
	out := s.Copy(n.dtype, dx)
	return []*tensor.Tensor{nil, s.Reshape(out, n.shape...)}
}
