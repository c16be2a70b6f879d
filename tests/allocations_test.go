package tests

import (
	"context"
	"runtime"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/tensor"
)

// raceDetector says that this binary was built with -race.
var raceDetector bool

// A step of a transformer of six layers, forward, backward and AdamW, makes a few
// allocations for what the caller sees, and none for each operation. `go run
// ./bench -only train_step/allocations` counts those of a larger one.
func TestStepAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("with the race detector sync.Pool drops a part of what it is given, at random")
	}
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		dev := cpu.New(cpu.Threads(2))
		t.Cleanup(func() { _ = dev.Close() })
		ok := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		m, err := nn.NewTransformer(nn.Config{Vocab: 19, Layers: 6, Dim: 32, Heads: 2, Residual: nn.PreNorm, DType: d}, 1)
		ok(err)
		var params []optim.Param
		for _, p := range m.Parameters() {
			params = append(params, optim.Param{Value: p.Value, Decay: p.Decay})
		}
		sum, err := optim.NewAccumulator(dev, params)
		ok(err)
		opt, err := optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 0.01})
		ok(err)
		ids := make([]int32, 4*24)
		for i := range ids {
			ids[i] = int32(i * 7 % 19)
		}
		x, err := tensor.FromSlice(ids, 4, 24)
		ok(err)
		step := func() {
			tape := autograd.NewTape(context.Background(), dev)
			defer tape.Release()
			g, err := tape.Backward(m.Loss(tape, tape.Const(x), tape.Const(x)))
			ok(err)
			ok(sum.Reset())
			ok(sum.Add(g))
			_, err = sum.Norm()
			ok(err)
			ok(sum.Scale(0.5))
			ok(opt.Step(sum, 1e-3))
		}
		for range 5 {
			step()
		}
		runtime.GC()
		var before, after runtime.MemStats
		const steps = 40
		runtime.ReadMemStats(&before)
		for range steps {
			step()
		}
		runtime.ReadMemStats(&after)
		n := float64(after.Mallocs-before.Mallocs) / steps
		t.Logf("%v: %.1f allocations a step", d, n)
		if n > 60 {
			t.Errorf("%v: %.1f allocations a step", d, n)
		}
	}
}
