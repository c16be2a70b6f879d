package cpu

import "github.com/lamina-go/lamina/tensor"

// quickVariants are all kernels that a tier may use, whatever the machine has beside.
func quickVariants(x tier, d tensor.DType) []*quickKernels {
	k := quickKernelsOf(x, d)
	if k == quickBF16Rounds {
		return []*quickKernels{k, quickBF16AVX512}
	}
	return []*quickKernels{k}
}
