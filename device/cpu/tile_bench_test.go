package cpu

import (
	"fmt"
	"testing"
)

// The tiles of the matrix product along packed panels of b, as many as the
// second-level cache holds.
func BenchmarkGemmTiles(b *testing.B) {
	const k, panels = kBlock, colBlock / 32
	tile := tile32(active)
	for _, kernel := range tile.rows {
		b.Run(fmt.Sprintf("%dx%d", kernel.rows, tile.cols), func(b *testing.B) {
			x, y := make([]float32, kernel.rows*1024), make([]float32, panels*32*k)
			z := make([]float32, kernel.rows*1024)
			for b.Loop() {
				for j := range panels * 32 / tile.cols {
					kernel.run(&z[j*tile.cols], 1024, &x[0], 1, kernel.rows, &y[j*tile.cols*k], tile.cols, k, true)
				}
			}
			b.ReportMetric(2*float64(kernel.rows*panels*32*k)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}
