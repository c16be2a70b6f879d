package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// Softmax is the fused kernels of the softmax over the last axis, of size C at
// least 1, of its logarithm, and of the cross-entropy made of it. The stats of a
// row x, (...,2) in float64, are its largest element top, so that nothing
// overflows, and sum, that of exp(x - top); the softmax is p = exp(x - top) / sum.
// A row with an infinite element that is not -Inf, with a NaN, or without a
// finite one has NaN for its sum and its results.
type Softmax interface {
	// SoftmaxForward writes y = p, or where log is true x - top - log(sum), of
	// x's shape and dtype, and the stats.
	SoftmaxForward(ctx context.Context, y, stats, x *tensor.Tensor, log bool) error

	// SoftmaxBackward writes gradX = p (gradY - sum(p gradY)), or where log is
	// true gradY - p sum(gradY).
	SoftmaxBackward(ctx context.Context, gradX, gradY, x, stats *tensor.Tensor, log bool) error

	// CrossEntropyForward writes loss = log(sum) - (x[target] - top) of each row,
	// (N,1) in the wide type of X, and the stats, (N,2). All are 0 where the
	// target is ignored.
	CrossEntropyForward(ctx context.Context, a *CrossEntropyArgs, loss, stats *tensor.Tensor) error

	// CrossEntropyBackward writes gradX = (p - onehot(target)) scale gradLoss, 0
	// in the rows whose target is ignored; gradLoss is (N,1) in the wide type of X.
	CrossEntropyBackward(ctx context.Context, a *CrossEntropyArgs, stats, gradLoss *tensor.Tensor, scale float64, gradX *tensor.Tensor) error
}

// CrossEntropyArgs are the inputs of a cross-entropy, of any strides.
type CrossEntropyArgs struct {
	X       *tensor.Tensor // (N,C) of a floating-point dtype: the logits
	Targets *tensor.Tensor // (N) of an integer type: 0..C-1, or Ignore
	Ignore  int
}
