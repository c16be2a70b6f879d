package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// AdamW is the fused step of the optimizer.
type AdamW interface {
	// AdamWStep updates, element by element, all of one shape and float32 or
	// all float64, the means m and v of the gradient and its square and the
	// weights:
	//
	//	m = beta1 m + (1-beta1) g
	//	v = beta2 v + (1-beta2) g^2
	//	w = decay w - rate m / (sqrt(v) root + eps)
	AdamWStep(ctx context.Context, c AdamWConstants, w, m, v, grad *tensor.Tensor) error
}

// AdamWConstants are the numbers of a step; corrections of the bias are in Rate and Root.
type AdamWConstants struct{ Beta1, Beta2, Decay, Rate, Root, Eps float64 }
