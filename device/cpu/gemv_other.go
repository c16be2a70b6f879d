//go:build !amd64

package cpu

import "github.com/lamina-go/lamina/tensor"

// gemvKernelsOf: there are none in assembly.
func gemvKernelsOf(tier, tensor.DType) *gemvKernels { return nil }
