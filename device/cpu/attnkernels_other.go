//go:build !amd64

package cpu

import "github.com/lamina-go/lamina/tensor"

func attnKernelsOf(tier, tensor.DType) *attnKernels { return nil }
