package cpu

// The tiles in assembly; see internal/asmgen.

//go:noescape
func gemmF32NEONx8(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32NEONx4(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32NEONx2(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF32NEONx1(c *float32, ldc int, a *float32, ars, acs int, b *float32, bks, k int, add bool)

//go:noescape
func gemmF64NEONx8(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64NEONx4(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64NEONx2(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

//go:noescape
func gemmF64NEONx1(c *float64, ldc int, a *float64, ars, acs int, b *float64, bks, k int, add bool)

// The tiles, made once.
var (
	tileF32NEON = tileKernel[float32]{cols: 8, rows: []rowKernel[float32]{{8, gemmF32NEONx8, nil}, {4, gemmF32NEONx4, nil}, {2, gemmF32NEONx2, nil}, {1, gemmF32NEONx1, nil}}}
	tileF64NEON = tileKernel[float64]{cols: 4, rows: []rowKernel[float64]{{8, gemmF64NEONx8, nil}, {4, gemmF64NEONx4, nil}, {2, gemmF64NEONx2, nil}, {1, gemmF64NEONx1, nil}}}
)

func tile32(t tier) tileKernel[float32] {
	if t == neon {
		return tileF32NEON
	}
	return portable32
}

func tile64(t tier) tileKernel[float64] {
	if t == neon {
		return tileF64NEON
	}
	return portable64
}

func tileBF16(tier) (tileKernel[float32], bool) { return tileKernel[float32]{}, false }
