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

// eachRounding calls f, and again as on a machine without an instruction that
// rounds to bfloat16 where this one has it.
func eachRounding(f func()) {
	f()
	if hasAVX512BF16 {
		hasAVX512BF16 = false
		defer func() { hasAVX512BF16 = true }()
		f()
	}
}
