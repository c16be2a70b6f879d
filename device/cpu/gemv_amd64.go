package cpu

import (
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// Products of a row with a matrix in assembly; see internal/asmgen.

//go:noescape
func gemvRows8BF16AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1BF16AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows8F16AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1F16AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows8F32AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1F32AVX512(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows8BF16AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1BF16AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows8F16AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1F16AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows8F32AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvRows1F32AVX2(sum, x *float32, b unsafe.Pointer, stride, n int)

//go:noescape
func gemvDotsBF16AVX512(sum, x *float32, b unsafe.Pointer, stride, k, n int)

//go:noescape
func gemvDotsF16AVX512(sum, x *float32, b unsafe.Pointer, stride, k, n int)

//go:noescape
func gemvDotsF32AVX512(sum, x *float32, b unsafe.Pointer, stride, k, n int)

var (
	gemvsAVX512 = map[tensor.DType]*gemvKernels{
		tensor.BFloat16: {gemvRows8BF16AVX512, gemvRows1BF16AVX512, gemvDotsBF16AVX512},
		tensor.Float16:  {gemvRows8F16AVX512, gemvRows1F16AVX512, gemvDotsF16AVX512},
		tensor.Float32:  {gemvRows8F32AVX512, gemvRows1F32AVX512, gemvDotsF32AVX512},
	}
	gemvsAVX2 = map[tensor.DType]*gemvKernels{
		tensor.BFloat16: {gemvRows8BF16AVX2, gemvRows1BF16AVX2, nil},
		tensor.Float16:  {gemvRows8F16AVX2, gemvRows1F16AVX2, nil},
		tensor.Float32:  {gemvRows8F32AVX2, gemvRows1F32AVX2, nil},
	}
)

// gemvKernelsOf are those of a tier for a matrix of a dtype; nil: there are none.
func gemvKernelsOf(t tier, d tensor.DType) *gemvKernels {
	switch t {
	case avx512:
		return gemvsAVX512[d]
	case avx2:
		return gemvsAVX2[d]
	}
	return nil
}
