package tests

import (
	"context"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// What an operation costs beside its arithmetic: fifty on a tape, of sixteen
// elements each, and their backward.
func BenchmarkSmallOperations(b *testing.B) {
	dev := cpu.New(cpu.Threads(2))
	defer func() { _ = dev.Close() }()
	x, err := tensor.Zeros(tensor.Float32, 4, 4)
	if err != nil {
		b.Fatal(err)
	}
	y, err := tensor.Zeros(tensor.Float32, 4, 4)
	if err != nil {
		b.Fatal(err)
	}
	for _, op := range []struct {
		name string
		of   func(v, w *autograd.Var) *autograd.Var
	}{
		{"add", ops.Add},
		{"mul", ops.Mul},
		{"matmul", ops.MatMul},
		{"linear", func(v, w *autograd.Var) *autograd.Var { return ops.Linear(v, w, nil) }},
		{"tanh", func(v, _ *autograd.Var) *autograd.Var { return ops.Tanh(v) }},
	} {
		b.Run(op.name, func(b *testing.B) {
			b.ReportAllocs()
			const times = 50
			for b.Loop() {
				t := autograd.NewTape(context.Background(), dev)
				v, w := t.Watch(x), t.Watch(y)
				for range times {
					v = op.of(v, w)
				}
				if _, err := t.Backward(ops.Sum(v, ops.Over(0, 1))); err != nil {
					b.Fatal(err)
				}
				t.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/times, "ns/operation")
		})
	}
}
