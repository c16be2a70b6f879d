package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// Attention is the fused kernel of attention, softmax(scale q k^T) v, without a
// matrix of queries by keys in memory (Dao et al., "FlashAttention", 2022).
type Attention interface {
	// AttentionForward writes out, (B,H,T,V), and, for the backward, the
	// logarithm of the sum of exponentials of each query's logits to lse,
	// (B,H,T) in float64; lse may be nil. A query that sees no key gives zeros,
	// and -Inf in lse.
	AttentionForward(ctx context.Context, a *AttentionArgs, out, lse *tensor.Tensor) error

	// AttentionBackward writes the gradients of q, k and v from that of out;
	// one that is nil is not wanted.
	AttentionBackward(ctx context.Context, a *AttentionArgs, lse, gradOut, gradQ, gradK, gradV *tensor.Tensor) error
}

// AttentionArgs are the inputs of attention: any strides, one floating-point
// dtype. H is a multiple of G: H/G query heads share a key head.
type AttentionArgs struct {
	Q      *tensor.Tensor // (B,H,T,W)
	K      *tensor.Tensor // (B,G,S,W)
	V      *tensor.Tensor // (B,G,S,V)
	Scale  float64        // of the logits; finite
	Causal bool           // query i sees the keys up to i + S - T
}
