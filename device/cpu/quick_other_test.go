//go:build !amd64

package cpu

import "github.com/lamina-go/lamina/tensor"

// quickVariants are all kernels that a tier may use.
func quickVariants(x tier, d tensor.DType) []*quickKernels {
	return []*quickKernels{quickKernelsOf(x, d)}
}

// eachRounding calls f.
func eachRounding(f func()) { f() }
