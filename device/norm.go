package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// Norm is the fused kernel of RMSNorm and LayerNorm over the last axis, of size D.
type Norm interface {
	// NormForward writes y, of x's shape and dtype, and for the backward the
	// mean, where x is centred, and 1/sqrt(mean square + eps) of each row,
	// (...,1) in float64.
	NormForward(ctx context.Context, a *NormArgs, y, mean, rstd *tensor.Tensor) error

	// NormBackward writes the gradients of x, the weight and the bias; one that
	// is nil is not wanted.
	NormBackward(ctx context.Context, a *NormArgs, mean, rstd, gradY, gradX, gradWeight, gradBias *tensor.Tensor) error
}

// NormArgs are the inputs of a norm: any strides, one floating-point dtype.
type NormArgs struct {
	X      *tensor.Tensor // (...,D), D at least 1
	Weight *tensor.Tensor // (D), or nil for ones
	Bias   *tensor.Tensor // (D), or nil for zeros
	Eps    float64        // added to the mean square; finite, at least 0
	Center bool           // the mean is subtracted first: LayerNorm
}
