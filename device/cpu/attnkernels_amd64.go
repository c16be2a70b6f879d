package cpu

import (
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// The row operations of BlockAttnRes in assembly; see internal/asmgen.

//go:noescape
func squaresBF16AVX512(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)

//go:noescape
func dotsBF16AVX512(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)

//go:noescape
func mixBF16AVX512(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int)

//go:noescape
func narrowBF16AVX512(to unsafe.Pointer, from *float64, n int)

//go:noescape
func slopesBF16AVX512(to, v unsafe.Pointer, grad, u, q *float64, c *[4]float64, n, past int)

//go:noescape
func squaresF16AVX512(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)

//go:noescape
func dotsF16AVX512(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)

//go:noescape
func mixF16AVX512(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int)

//go:noescape
func narrowF16AVX512(to unsafe.Pointer, from *float64, n int)

//go:noescape
func slopesF16AVX512(to, v unsafe.Pointer, grad, u, q *float64, c *[4]float64, n, past int)

//go:noescape
func squaresF32AVX512(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)

//go:noescape
func dotsF32AVX512(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)

//go:noescape
func mixF32AVX512(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int)

//go:noescape
func narrowF32AVX512(to unsafe.Pointer, from *float64, n int)

//go:noescape
func slopesF32AVX512(to, v unsafe.Pointer, grad, u, q *float64, c *[4]float64, n, past int)

//go:noescape
func squaresF64AVX512(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)

//go:noescape
func dotsF64AVX512(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)

//go:noescape
func mixF64AVX512(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int)

//go:noescape
func narrowF64AVX512(to unsafe.Pointer, from *float64, n int)

//go:noescape
func slopesF64AVX512(to, v unsafe.Pointer, grad, u, q *float64, c *[4]float64, n, past int)

// The kernels, made once.
var (
	attnBF16AVX512 = &attnKernels{squaresBF16AVX512, dotsBF16AVX512, mixBF16AVX512, narrowBF16AVX512, slopesBF16AVX512, quickFence}
	attnF16AVX512  = &attnKernels{squaresF16AVX512, dotsF16AVX512, mixF16AVX512, narrowF16AVX512, slopesF16AVX512, quickFence}
	attnF32AVX512  = &attnKernels{squaresF32AVX512, dotsF32AVX512, mixF32AVX512, narrowF32AVX512, slopesF32AVX512, quickFence}
	attnF64AVX512  = &attnKernels{squaresF64AVX512, dotsF64AVX512, mixF64AVX512, narrowF64AVX512, slopesF64AVX512, quickFence}
)

// attnKernelsOf are the row operations of a tier; nil: those in Go.
func attnKernelsOf(t tier, d tensor.DType) *attnKernels {
	if t != avx512 {
		return nil
	}
	switch d {
	case tensor.BFloat16:
		return attnBF16AVX512
	case tensor.Float16:
		return attnF16AVX512
	case tensor.Float32:
		return attnF32AVX512
	}
	return attnF64AVX512
}
