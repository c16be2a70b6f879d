package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// BlockAttnRes is the fused kernel of package ops/blockattnres, which has the
// mathematics and checks the arguments. With L = N, or N+1 with a partial block:
// the sources are read where they lie, without a stacked copy.
type BlockAttnRes interface {
	BlockAttnResForward(ctx context.Context, a *BlockAttnResArgs, out *BlockAttnResOut) error

	// BlockAttnResBackward consumes the caches of the forward and the gradient
	// of h, (B,T,D). Gradients that are nil in grads are not wanted.
	BlockAttnResBackward(ctx context.Context, a *BlockAttnResArgs, saved *BlockAttnResOut, gradH *tensor.Tensor, grads *BlockAttnResGrads) error
}

// BlockAttnResArgs are the inputs of the operator. Any strides, one floating-point dtype.
type BlockAttnResArgs struct {
	Blocks       []*tensor.Tensor // N of (B,T,D)
	PartialBlock *tensor.Tensor   // (B,T,D) or nil
	ProjWeight   *tensor.Tensor   // (D)
	RMSNormGamma *tensor.Tensor   // (D); nil without RMSNorm
	Scale        float64          // factor of the logits
	Eps          float64          // added to the mean square, inside the root
	RMSNorm      bool             // keys are normalised rows, else the rows
}

// Sources are the L tensors over which the softmax runs: the blocks, then the
// partial block if there is one.
func (a *BlockAttnResArgs) Sources() []*tensor.Tensor {
	if a.PartialBlock == nil {
		return a.Blocks
	}
	return append(a.Blocks[:len(a.Blocks):len(a.Blocks)], a.PartialBlock)
}

// BlockAttnResOut are the results of the forward. The caches are float32 or
// float64, and nil where they are not wanted.
type BlockAttnResOut struct {
	H     *tensor.Tensor // (B,T,D)
	RMS   *tensor.Tensor // (B,T,L,1) or nil: the denominators of the RMSNorm
	Alpha *tensor.Tensor // (B,T,L) or nil: the weights
}

// BlockAttnResGrads are the results of the backward, each nil where it is not
// wanted; any floating-point dtypes.
type BlockAttnResGrads struct {
	Blocks       []*tensor.Tensor // N of (B,T,D), nil or elements that are nil
	PartialBlock *tensor.Tensor   // (B,T,D)
	ProjWeight   *tensor.Tensor   // (D)
	RMSNormGamma *tensor.Tensor   // (D)

	// Add says of the blocks, and last of the partial block if there is one,
	// which gradients are added to what their tensors hold; nil: none is. They
	// are rounded to the dtype of the sources before, as if written apart.
	Add []bool
}
