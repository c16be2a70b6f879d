package cpu

import (
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// The row operations of the quick path of BlockAttnRes; see internal/asmgen.

// upperHalves are the indices of the upper halves of the 32-bit words of two vectors.
var upperHalves = func() (x [32]uint16) {
	for i := range x {
		x[i] = uint16(2*i + 1)
	}
	return x
}()

var _ = &upperHalves // used in assembly alone

//go:noescape
func quicksquaresBF16AVX512(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickdotsBF16AVX512(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickmixBF16AVX512(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)

//go:noescape
func quicknarrowBF16AVX512(to unsafe.Pointer, h *float32, c float32, n int)

//go:noescape
func quickslopesBF16AVX512(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)

//go:noescape
func quicknarrowBF16AVX512BF16(to unsafe.Pointer, h *float32, c float32, n int)

//go:noescape
func quickslopesBF16AVX512BF16(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)

//go:noescape
func quickwidenBF16AVX512(to *float32, from unsafe.Pointer, n int)

//go:noescape
func quicksquaresF16AVX512(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickdotsF16AVX512(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickmixF16AVX512(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)

//go:noescape
func quicknarrowF16AVX512(to unsafe.Pointer, h *float32, c float32, n int)

//go:noescape
func quickslopesF16AVX512(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)

//go:noescape
func quickwidenF16AVX512(to *float32, from unsafe.Pointer, n int)

//go:noescape
func quickrootsAVX512(vv, vu *float32, c *[2]float64, n int, rms, key *float64)

//go:noescape
func quickexpsAVX512(e, x *float64, c *[2]float64, n int)

//go:noescape
func quickaddAVX512(sum *float64, x *float32, n int)

//go:noescape
func quicksquaresBF16AVX2(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickdotsBF16AVX2(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickmixBF16AVX2(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)

//go:noescape
func quicknarrowBF16AVX2(to unsafe.Pointer, h *float32, c float32, n int)

//go:noescape
func quickslopesBF16AVX2(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)

//go:noescape
func quickwidenBF16AVX2(to *float32, from unsafe.Pointer, n int)

//go:noescape
func quicksquaresF16AVX2(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickdotsF16AVX2(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)

//go:noescape
func quickmixF16AVX2(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)

//go:noescape
func quicknarrowF16AVX2(to unsafe.Pointer, h *float32, c float32, n int)

//go:noescape
func quickslopesF16AVX2(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)

//go:noescape
func quickwidenF16AVX2(to *float32, from unsafe.Pointer, n int)

//go:noescape
func quickrootsAVX2(vv, vu *float32, c *[2]float64, n int, rms, key *float64)

//go:noescape
func quickexpsAVX2(e, x *float64, c *[2]float64, n int)

//go:noescape
func quickaddAVX2(sum *float64, x *float32, n int)

//go:noescape
func halfAddBF16AVX512BF16(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfSubBF16AVX512BF16(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfMulBF16AVX512BF16(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfDivBF16AVX512BF16(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfAddBF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfSubBF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfMulBF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfDivBF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfAddF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfSubF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfMulF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfDivF16AVX512(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfAddBF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfSubBF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfMulBF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfDivBF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfAddF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfSubF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfMulF16AVX2(to, a, b unsafe.Pointer, n int)

//go:noescape
func halfDivF16AVX2(to, a, b unsafe.Pointer, n int)

// quickFence makes what was written past the caches visible before what is written next.
//
//go:noescape
func quickFence()

// The kernels of each tier, made once.
var (
	quickBF16Rounds = &quickKernels{quicksquaresBF16AVX512, quickdotsBF16AVX512, quickmixBF16AVX512, quickslopesBF16AVX512BF16, halfKernels{quickwidenBF16AVX512, quicknarrowBF16AVX512BF16, halfAddBF16AVX512BF16, halfSubBF16AVX512BF16, halfMulBF16AVX512BF16, halfDivBF16AVX512BF16}, quickrootsAVX512, quickexpsAVX512, quickaddAVX512, quickFence}
	quickBF16AVX512 = &quickKernels{quicksquaresBF16AVX512, quickdotsBF16AVX512, quickmixBF16AVX512, quickslopesBF16AVX512, halfKernels{quickwidenBF16AVX512, quicknarrowBF16AVX512, halfAddBF16AVX512, halfSubBF16AVX512, halfMulBF16AVX512, halfDivBF16AVX512}, quickrootsAVX512, quickexpsAVX512, quickaddAVX512, quickFence}
	quickF16AVX512  = &quickKernels{quicksquaresF16AVX512, quickdotsF16AVX512, quickmixF16AVX512, quickslopesF16AVX512, halfKernels{quickwidenF16AVX512, quicknarrowF16AVX512, halfAddF16AVX512, halfSubF16AVX512, halfMulF16AVX512, halfDivF16AVX512}, quickrootsAVX512, quickexpsAVX512, quickaddAVX512, quickFence}
	quickBF16AVX2   = &quickKernels{quicksquaresBF16AVX2, quickdotsBF16AVX2, quickmixBF16AVX2, quickslopesBF16AVX2, halfKernels{quickwidenBF16AVX2, quicknarrowBF16AVX2, halfAddBF16AVX2, halfSubBF16AVX2, halfMulBF16AVX2, halfDivBF16AVX2}, quickrootsAVX2, quickexpsAVX2, quickaddAVX2, quickFence}
	quickF16AVX2    = &quickKernels{quicksquaresF16AVX2, quickdotsF16AVX2, quickmixF16AVX2, quickslopesF16AVX2, halfKernels{quickwidenF16AVX2, quicknarrowF16AVX2, halfAddF16AVX2, halfSubF16AVX2, halfMulF16AVX2, halfDivF16AVX2}, quickrootsAVX2, quickexpsAVX2, quickaddAVX2, quickFence}
)

func quickKernelsOf(t tier, d tensor.DType) *quickKernels {
	bf16 := d == tensor.BFloat16
	switch {
	case t == avx512 && bf16 && hasAVX512BF16:
		return quickBF16Rounds // an instruction for it, and the same bits
	case t == avx512 && bf16:
		return quickBF16AVX512
	case t == avx512:
		return quickF16AVX512
	case t == avx2 && bf16:
		return quickBF16AVX2
	case t == avx2:
		return quickF16AVX2
	}
	return quickPortable(d)
}
