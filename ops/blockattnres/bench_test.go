package blockattnres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/tensor"
)

// The operator, forward and backward, at (B,T,N,D) with a partial block, in
// bfloat16. Bytes are those of V read twice and dV written once. B/peak is the
// most device memory beside the inputs.
func BenchmarkForwardBackward(b *testing.B) {
	for _, shape := range [][4]int{{1, 1023, 32, 512}, {2, 4096, 25, 512}} {
		in := operands(b, tensor.BFloat16, shape[2], shape[0], shape[1], shape[3])
		seed := noise(b, tensor.BFloat16, 300, shape[0], shape[1], shape[3])
		bytes := int64(3 * 2 * (shape[2] + 1) * shape[0] * shape[1] * shape[3])
		for _, p := range []struct {
			name string
			f    func(blockattnres.Inputs, ...blockattnres.Option) *autograd.Var
		}{{"fused", blockattnres.Apply}, {"decomposed", blockattnres.Decomposed}} {
			b.Run(fmt.Sprintf("%s/%dx%dx%dx%d", p.name, shape[0], shape[1], shape[2], shape[3]), func(b *testing.B) {
				dev := cpu.New()
				defer dev.Close()
				b.SetBytes(bytes)
				for b.Loop() {
					tape := autograd.NewTape(context.Background(), dev)
					var v []*autograd.Var
					for _, x := range list(in) {
						v = append(v, tape.Watch(x))
					}
					h := p.f(inputs(v, shape[2], true, true))
					if _, err := tape.BackwardFrom(h, seed); err != nil {
						b.Fatal(err)
					}
					tape.Release()
				}
				_, peak, _ := dev.Memory()
				b.ReportMetric(float64(peak), "B/peak")
			})
		}
	}
}

// The forward alone, without and with caches.
func BenchmarkForward(b *testing.B) {
	in := operands(b, tensor.BFloat16, 25, 2, 4096, 512)
	dev := cpu.New()
	defer dev.Close()
	for _, caches := range []bool{false, true} {
		b.Run(fmt.Sprintf("caches=%v", caches), func(b *testing.B) {
			b.SetBytes(2 * 26 * 2 * 4096 * 512)
			for b.Loop() {
				s := device.NewStream(context.Background(), dev)
				if _, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: caches, Alpha: caches}); err != nil {
					b.Fatal(err)
				}
				s.Release()
			}
		})
	}
}
