package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// Rotary is the fused kernel of the rotary embedding.
type Rotary interface {
	// RotateHalves turns the pairs of the two halves a and b of each row of x,
	// (...,T,D) with an even D, by the angle of their place, whose cosine and
	// sine are (T,D/2) in the wide type of x: the halves of out become
	// a cos - b sin and b cos + a sin. With back it turns the other way. Each
	// product and each sum is rounded to the wide type.
	RotateHalves(ctx context.Context, out, x, cos, sin *tensor.Tensor, back bool) error
}
