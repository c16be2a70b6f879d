package cpu

import "unsafe"

// Rows of float32 in assembly; see internal/asmgen.

//go:noescape
func rowAddAVX512(out, a, b *float32, n int)

//go:noescape
func rowSubAVX512(out, a, b *float32, n int)

//go:noescape
func rowMulAVX512(out, a, b *float32, n int)

//go:noescape
func rowDivAVX512(out, a, b *float32, n int)

//go:noescape
func topAVX512(x *float32, n int, lanes *[16]float32)

//go:noescape
func dotRowAVX512(a, b *float32, n int, lanes *[16]float64)

//go:noescape
func sumRowAVX512(x *float32, n int, lanes *[8]float64)

//go:noescape
func squaresRowAVX512(x *float32, n int, lanes *[8]float64)

//go:noescape
func sumRowsBF16AVX512(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func sumRowsF16AVX512(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func sumRowsF32AVX512(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func slopeRowAVX512(t, p *float32, c *[2]float64, n int)

//go:noescape
func scaleRowAVX512(x *float32, c *float64, n int)

//go:noescape
func shiftRowAVX512(y, x *float32, c *[2]float64, n int)

//go:noescape
func subtractRowAVX512(t, p *float32, c *float64, n int)

//go:noescape
func rotateRowsAVX512(out, x, cos, sin, sign *float32, half, rows, n int)

//go:noescape
func widenRowsBF16AVX512(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func widenRowsF16AVX512(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func narrowRowsBF16AVX512(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)

//go:noescape
func narrowRowsF16AVX512(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)

//go:noescape
func widenRowsF32AVX512(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func rowAddAVX2(out, a, b *float32, n int)

//go:noescape
func rowSubAVX2(out, a, b *float32, n int)

//go:noescape
func rowMulAVX2(out, a, b *float32, n int)

//go:noescape
func rowDivAVX2(out, a, b *float32, n int)

//go:noescape
func topAVX2(x *float32, n int, lanes *[16]float32)

//go:noescape
func dotRowAVX2(a, b *float32, n int, lanes *[16]float64)

//go:noescape
func sumRowAVX2(x *float32, n int, lanes *[8]float64)

//go:noescape
func squaresRowAVX2(x *float32, n int, lanes *[8]float64)

//go:noescape
func sumRowsBF16AVX2(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func sumRowsF16AVX2(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func sumRowsF32AVX2(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)

//go:noescape
func slopeRowAVX2(t, p *float32, c *[2]float64, n int)

//go:noescape
func scaleRowAVX2(x *float32, c *float64, n int)

//go:noescape
func shiftRowAVX2(y, x *float32, c *[2]float64, n int)

//go:noescape
func subtractRowAVX2(t, p *float32, c *float64, n int)

//go:noescape
func rotateRowsAVX2(out, x, cos, sin, sign *float32, half, rows, n int)

//go:noescape
func widenRowsBF16AVX2(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func widenRowsF16AVX2(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func narrowRowsBF16AVX2(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)

//go:noescape
func narrowRowsF16AVX2(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)

//go:noescape
func widenRowsF32AVX2(to *float32, from unsafe.Pointer, stride, rows, n int)

//go:noescape
func narrowRowsBF16AVX512BF16(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)

// pause leaves the core to its other thread for some cycles.
func pause()

var (
	vectorsAVX512 = &vectorKernels{rowAddAVX512, rowSubAVX512, rowMulAVX512, rowDivAVX512, quickaddAVX512, topAVX512, dotRowAVX512, sumRowAVX512, squaresRowAVX512, slopeRowAVX512, scaleRowAVX512, shiftRowAVX512, subtractRowAVX512, rotateRowsAVX512,
		widenRowsBF16AVX512, widenRowsF16AVX512, widenRowsF32AVX512, narrowRowsBF16AVX512, narrowRowsF16AVX512,
		sumRowsBF16AVX512, sumRowsF16AVX512, sumRowsF32AVX512}
	vectorsAVX2 = &vectorKernels{rowAddAVX2, rowSubAVX2, rowMulAVX2, rowDivAVX2, quickaddAVX2, topAVX2, dotRowAVX2, sumRowAVX2, squaresRowAVX2, slopeRowAVX2, scaleRowAVX2, shiftRowAVX2, subtractRowAVX2, rotateRowsAVX2,
		widenRowsBF16AVX2, widenRowsF16AVX2, widenRowsF32AVX2, narrowRowsBF16AVX2, narrowRowsF16AVX2,
		sumRowsBF16AVX2, sumRowsF16AVX2, sumRowsF32AVX2}
)

// vectorsRounding round to bfloat16 by an instruction for it, with the same bits.
var vectorsRounding = func() *vectorKernels {
	k := *vectorsAVX512
	k.narrowBF16 = narrowRowsBF16AVX512BF16
	return &k
}()

// vectorKernelsOf are the rows of a tier in assembly; nil: there are none.
func vectorKernelsOf(t tier) *vectorKernels {
	switch t {
	case avx512:
		if hasAVX512BF16 {
			return vectorsRounding
		}
		return vectorsAVX512
	case avx2:
		return vectorsAVX2
	}
	return nil
}
