package cpu

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/tensor"
)

func BenchmarkMatMul(b *testing.B) {
	for _, threads := range []int{1, 2} {
		d := New(Threads(threads))
		defer d.Close()
		for _, s := range [][4]int{{1, 512, 512, 512}, {1, 1024, 1024, 1024}, {1, 3072, 384, 1536}, {1, 2048, 128, 384}, {1, 2048, 384, 128}, {1, 128, 2048, 384}, {72, 256, 64, 256}, {8192, 1, 26, 512}, {8192, 26, 1, 512}, {1, 2048, 2048, 1}, {1, 127, 131, 129}, {1, 1024, 1024, 16}, {1, 513, 513, 513}, {16, 256, 256, 48}} {
			b.Run(fmt.Sprintf("threads=%d/%dx%dx%dx%d", threads, s[0], s[1], s[2], s[3]), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 1))
				x := laid(b, dense, tensor.Float32, numbers(r, s[0]*s[1]*s[2], -1, 1), s[0], s[1], s[2])
				y := laid(b, dense, tensor.Float32, numbers(r, s[0]*s[2]*s[3], -1, 1), s[0], s[2], s[3])
				z, _ := tensor.Zeros(tensor.Float32, s[0], s[1], s[3])
				for b.Loop() {
					if err := d.MatMul(context.Background(), z, x, y); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(2*float64(s[0]*s[1]*s[2]*s[3])/float64(b.Elapsed().Nanoseconds())*float64(b.N), "GFLOP/s")
			})
		}
	}
}
