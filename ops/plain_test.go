package ops_test

import (
	"context"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// plainDevice has the kernels of a device that every device has, and none of the fused ones.
type plainDevice struct{ device.Device }

// What small kernels compute where a device has no fused one is what the fused ones do.
func TestWithoutFusedKernels(t *testing.T) {
	const b, h, n, w = 2, 2, 9, 8
	shapes := []tensor.Shape{{b, h, n, w}, {b, h, n, w}, {b, h, n, w}, {w}, {w}, {w, w}, {w}}
	run := func(dev device.Device, d tensor.DType) [][]float64 {
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		var in []*autograd.Var
		for i, s := range shapes {
			in = append(in, tape.Watch(laid("dense", d, normal(uint64(i), s.Len()), s...)))
		}
		y := ops.Attention(ops.RotaryEmbedding(in[0], 100, 3), in[1], in[2], ops.AttentionOptions{Causal: true})
		y = ops.RMSNorm(ops.LayerNorm(y, in[3], in[4], 0.3), in[4], 0.2)
		targets := make([]float64, b*h*n)
		for i := range targets {
			if targets[i] = float64(i % w); i%5 == 0 {
				targets[i] = ops.IgnoreIndex
			}
		}
		loss := ops.CrossEntropy(y, ids(tape, targets, b, h, n), ops.MeanOfCounted, ops.IgnoreIndex)
		each := ops.CrossEntropy(y, ids(tape, targets, b, h, n), ops.PerTarget, ops.IgnoreIndex)
		y = ops.Add(ops.Add(ops.Softmax(y, -1), ops.LogSoftmax(y, 1)), ops.Mul(ops.Unsqueeze(each, -1), loss))
		y = ops.Sum(ops.Square(ops.Linear(y, in[5], in[6])), ops.All())
		return append([][]float64{values(t, y)}, gradients(t, y, in...)...)
	}
	for d, tolerance := range map[tensor.DType]float64{tensor.Float32: 2e-5, tensor.Float64: 1e-12} {
		fused, plain := run(dev, d), run(plainDevice{dev}, d)
		for k := range fused {
			var size float64
			for _, x := range plain[k] {
				size = max(size, math.Abs(x))
			}
			for i, x := range plain[k] {
				if !(math.Abs(fused[k][i]-x) <= tolerance*(size+1)) {
					t.Fatalf("%v: result %d, element %d is %v, want %v", d, k, i, fused[k][i], x)
				}
			}
		}
	}
}
