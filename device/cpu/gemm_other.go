//go:build !amd64 && !arm64

package cpu

func tile32(tier) tileKernel[float32] { return portable32 }
func tile64(tier) tileKernel[float64] { return portable64 }

func tileBF16(tier) (tileKernel[float32], bool) { return tileKernel[float32]{}, false }
