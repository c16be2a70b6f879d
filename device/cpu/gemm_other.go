//go:build !amd64

package cpu

func tile32(tier) tileKernel[float32] { return portable32 }
func tile64(tier) tileKernel[float64] { return portable64 }
