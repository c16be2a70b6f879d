package cpu

// The row operations of norms and AdamW; see internal/asmgen.

//go:noescape
func momentsAVX512(x *float32, c *[2]float64, n int, lanes *[32]float64)

//go:noescape
func normalAVX512(y, x, w *float32, c *[2]float64, n int)

//go:noescape
func normalBiasAVX512(y, x, w, b *float32, c *[2]float64, n int)

//go:noescape
func normDotsAVX512(grad, x, w *float32, c *[4]float64, n int, lanes *[32]float64)

//go:noescape
func normSlopesAVX512(dx, grad, x, w *float32, c *[4]float64, n int, dw, db *float64)

//go:noescape
func adamWAVX512(w, m, v, grad *float32, c *[8]float64, n int)

//go:noescape
func momentsAVX2(x *float32, c *[2]float64, n int, lanes *[32]float64)

//go:noescape
func normalAVX2(y, x, w *float32, c *[2]float64, n int)

//go:noescape
func normalBiasAVX2(y, x, w, b *float32, c *[2]float64, n int)

//go:noescape
func normDotsAVX2(grad, x, w *float32, c *[4]float64, n int, lanes *[32]float64)

//go:noescape
func normSlopesAVX2(dx, grad, x, w *float32, c *[4]float64, n int, dw, db *float64)

//go:noescape
func adamWAVX2(w, m, v, grad *float32, c *[8]float64, n int)

var (
	normsAVX512 = &normKernels{momentsAVX512, normalAVX512, normalBiasAVX512, normDotsAVX512, normSlopesAVX512, adamWAVX512}
	normsAVX2   = &normKernels{momentsAVX2, normalAVX2, normalBiasAVX2, normDotsAVX2, normSlopesAVX2, adamWAVX2}
)

// normKernelsOf are the row operations of a tier; nil: those in Go.
func normKernelsOf(t tier) *normKernels {
	switch t {
	case avx512:
		return normsAVX512
	case avx2:
		return normsAVX2
	}
	return nil
}
