package cpu

// The tiles in assembly; see internal/asmgen.

//go:noescape
func gemmF32AVX512x8(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x8half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x4(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x4half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x2(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x2half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x1(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX512x1half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x6(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x6half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x4(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x4half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x2(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x2half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x1(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32AVX2x1half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x8(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x8half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x4(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x4half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x2(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x2half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x1(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX512x1half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x6(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x6half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x4(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x4half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x2(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x2half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x1(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64AVX2x1half(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func transposeF32AVX512(to *float32, stride int, from *float32, ld, n int)

//go:noescape
func copyF32AVX512(to *float32, stride int, from *float32, ld, n, m int)

//go:noescape
func gemmBF16AVX512x8(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x8half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x4(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x4half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x2(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x2half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x1(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmBF16AVX512x1half(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func pairsBF16AVX512(to *float32, stride int, from *uint16, ld, n, m int)

// The tiles, made once.
var (
	tileBF16AVX512 = tileKernel[float32]{32, []rowKernel[float32]{{8, gemmBF16AVX512x8, gemmBF16AVX512x8half}, {4, gemmBF16AVX512x4, gemmBF16AVX512x4half}, {2, gemmBF16AVX512x2, gemmBF16AVX512x2half}, {1, gemmBF16AVX512x1, gemmBF16AVX512x1half}}, transposeF32AVX512, nil, pairsBF16AVX512}
	tileF32AVX512  = tileKernel[float32]{32, []rowKernel[float32]{{8, gemmF32AVX512x8, gemmF32AVX512x8half}, {4, gemmF32AVX512x4, gemmF32AVX512x4half}, {2, gemmF32AVX512x2, gemmF32AVX512x2half}, {1, gemmF32AVX512x1, gemmF32AVX512x1half}}, transposeF32AVX512, copyF32AVX512, nil}
	tileF32AVX2    = tileKernel[float32]{16, []rowKernel[float32]{{6, gemmF32AVX2x6, gemmF32AVX2x6half}, {4, gemmF32AVX2x4, gemmF32AVX2x4half}, {2, gemmF32AVX2x2, gemmF32AVX2x2half}, {1, gemmF32AVX2x1, gemmF32AVX2x1half}}, nil, nil, nil}
	tileF64AVX512  = tileKernel[float64]{16, []rowKernel[float64]{{8, gemmF64AVX512x8, gemmF64AVX512x8half}, {4, gemmF64AVX512x4, gemmF64AVX512x4half}, {2, gemmF64AVX512x2, gemmF64AVX512x2half}, {1, gemmF64AVX512x1, gemmF64AVX512x1half}}, nil, nil, nil}
	tileF64AVX2    = tileKernel[float64]{8, []rowKernel[float64]{{6, gemmF64AVX2x6, gemmF64AVX2x6half}, {4, gemmF64AVX2x4, gemmF64AVX2x4half}, {2, gemmF64AVX2x2, gemmF64AVX2x2half}, {1, gemmF64AVX2x1, gemmF64AVX2x1half}}, nil, nil, nil}
)

// tileBF16 are the tiles of words of two bfloat16, where the machine has them.
func tileBF16(t tier) (tileKernel[float32], bool) {
	if t != avx512 || !hasAVX512BF16 {
		return tileKernel[float32]{}, false
	}
	return tileBF16AVX512, true
}

func tile32(t tier) tileKernel[float32] {
	switch t {
	case avx512:
		return tileF32AVX512
	case avx2:
		return tileF32AVX2
	}
	return portable32
}

func tile64(t tier) tileKernel[float64] {
	switch t {
	case avx512:
		return tileF64AVX512
	case avx2:
		return tileF64AVX2
	}
	return portable64
}
