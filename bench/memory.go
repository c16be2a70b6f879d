package main

import (
	"fmt"
	"runtime"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// workspace reports what the operator, forward and backward, allocates beyond
// the tensors it is given: all bytes of a first call on a new device, before
// which the pools were emptied. It grows with D and the threads, not with the
// tokens, and hardly with the sources.
func (b *bench) workspace() {
	shapes := []shape{{2, 4096, 25, 512}, {1, 1023, 32, 512}, {1, 2048, 64, 2048}, {1, 256, 127, 6144}}
	for _, t := range []int{1024, 32768} {
		shapes = append(shapes, shape{1, t, 8, 512})
	}
	for _, s := range shapes {
		name := "blockattnres/workspace/bf16/" + s.String()
		if !b.wants(name) {
			continue
		}
		bytes, err := b.workspaceOf(tensor.BFloat16, s)
		if err != nil {
			b.fail(err)
			return
		}
		b.report(figure{Name: name, Value: bytes, Unit: "bytes"})
	}
}

func (b *bench) workspaceOf(d tensor.DType, s shape) (float64, error) {
	in, grad, err := operands(b.dev, d, s)
	if err != nil {
		return 0, err
	}
	zeros := func(d tensor.DType, dims ...int) *tensor.Tensor {
		t, e := tensor.Zeros(d, dims...)
		if e != nil {
			err = e
		}
		return t
	}
	rows := func() *tensor.Tensor { return zeros(d, s.b, s.t, s.d) }
	args := &device.BlockAttnResArgs{Blocks: in.Blocks, PartialBlock: in.PartialBlock, ProjWeight: in.ProjWeight, RMSNormGamma: in.RMSNormGamma, Scale: 1, Eps: 1e-6, RMSNorm: true}
	out := &device.BlockAttnResOut{H: rows(), RMS: zeros(tensor.Float32, s.b, s.t, s.n+1, 1), Alpha: zeros(tensor.Float32, s.b, s.t, s.n+1)}
	grads := &device.BlockAttnResGrads{PartialBlock: rows(), ProjWeight: zeros(d, s.d), RMSNormGamma: zeros(d, s.d)}
	for range s.n {
		grads.Blocks = append(grads.Blocks, rows())
	}
	if err != nil {
		return 0, err
	}
	dev := cpu.New(cpu.Threads(b.threads))
	defer dev.Close()
	runtime.GC()
	runtime.GC() // a pool gives up what it holds at the second
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := dev.BlockAttnResForward(b.ctx, args, out); err != nil {
		return 0, err
	}
	if err := dev.BlockAttnResBackward(b.ctx, args, out, grad, grads); err != nil {
		return 0, err
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc), nil
}

// growth measures the operator, forward and backward, along T, L and D, and
// reports the longest time of a number over the shortest.
func (b *bench) growth() {
	axes := []struct {
		name   string
		shapes []shape
	}{
		{"tokens", []shape{{1, 1024, 8, 512}, {1, 4096, 8, 512}, {1, 16384, 8, 512}, {1, 32768, 8, 512}}},
		{"sources", []shape{{1, 4096, 7, 512}, {1, 4096, 15, 512}, {1, 4096, 31, 512}, {1, 4096, 63, 512}}},
		{"width", []shape{{1, 4096, 8, 512}, {1, 4096, 8, 1024}, {1, 4096, 8, 2048}, {1, 4096, 8, 4096}}},
	}
	for _, axis := range axes {
		name := "blockattnres/growth/" + axis.name
		var least, most float64
		complete := true
		for _, s := range axis.shapes {
			seconds := b.operatorAt("bf16", tensor.BFloat16, s, name)
			if seconds == 0 {
				complete = false
				continue
			}
			each := seconds / float64(s.b*s.t*(s.n+1)*s.d)
			if most = max(most, each); least == 0 || each < least {
				least = each
			}
		}
		if complete {
			b.report(figure{Name: name, Value: most / least, Unit: "ratio", Limit: 1.05})
		}
	}
}

func (s shape) String() string { return fmt.Sprintf("%dx%dx%dx%d", s.b, s.t, s.n, s.d) }
