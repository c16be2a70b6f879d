package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// MatMulBias is the matrix product of a linear layer, fused with its bias.
type MatMulBias interface {
	// MatMulBias is MatMul with bias, (N) and floating-point, added to each row
	// of the sums before they are rounded to out's dtype.
	MatMulBias(ctx context.Context, out, a, b, bias *tensor.Tensor) error
}
