//go:build !amd64

package cpu

import "github.com/lamina-go/lamina/tensor"

func quickKernelsOf(_ tier, d tensor.DType) *quickKernels { return quickPortable(d) }
