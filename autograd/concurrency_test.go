package autograd_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Goroutines with a tape each over the same parameters get what one alone gets.
func TestATapeEach(t *testing.T) {
	dev := newDevice(t)
	x, w, b := mlpTensors(t, tensor.Float32)
	step := func() ([]uint64, error) {
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		g, err := tape.Backward(mlp(tape, x, w, b))
		if err != nil {
			return nil, err
		}
		host, err := tape.Download(g.Of(w))
		if err != nil {
			return nil, err
		}
		return host.Bits()
	}
	want, err := step()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 20 {
				if got, err := step(); err != nil || !slices.Equal(got, want) {
					t.Errorf("other bits: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if inUse, _, _ := dev.Memory(); inUse != 0 {
		t.Errorf("%d bytes are left", inUse)
	}
}

// Whatever two goroutines do with one tape, it is found, and is no data race.
func TestTwoGoroutinesOnOneTape(t *testing.T) {
	dev := newDevice(t)
	use := map[string]func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var){
		"operations": func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var) {
			for range 100 {
				y := ops.Mul(ops.Add(shared, shared), shared).Keep()
				_ = y.String()
				_ = y.Tensor()
			}
		},
		"leaves": func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var) {
			for range 100 {
				ops.Exp(tape.Watch(x))
				tape.Const(host(t, tensor.Float64, []float64{1}, 1))
			}
		},
		"backward": func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var) {
			y := ops.Exp(shared)
			_, _ = tape.BackwardFrom(y, x)
			_, _ = y.Float64s()
			_ = ops.Exp(y)
		},
		"failures": func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var) {
			for range 20 {
				ops.Exp(shared)
			}
			ops.Reshape(shared, 3)
			_ = tape.Err()
		},
		"release": func(tape *autograd.Tape, x *tensor.Tensor, shared *autograd.Var) {
			ops.Exp(shared)
			tape.Release()
		},
	}
	found := 0
	deadline := time.Now().Add(10 * time.Second)
	for round := 0; (round < 20 || found == 0 && runtime.GOMAXPROCS(0) > 1) && time.Now().Before(deadline); round++ {
		for name, first := range use {
			for second, then := range use {
				tape := autograd.NewTape(context.Background(), dev)
				x := host(t, tensor.Float64, make([]float64, 2000), 2000)
				shared := tape.Watch(x)
				var wg sync.WaitGroup
				start := make(chan bool)
				wg.Go(func() { <-start; first(tape, x, shared) })
				wg.Go(func() { <-start; then(tape, x, shared) })
				close(start)
				wg.Wait()
				err := tape.Err()
				if errors.Is(err, device.ErrConcurrentUse) {
					found++
					var op *autograd.OpError
					if !errors.As(err, &op) || op.Where == "" {
						t.Errorf("%v", err)
					}
				} else if err != nil && name == "operations" && second == "operations" {
					t.Errorf("%s and %s: %v", name, second, err)
				}
				tape.Release()
			}
		}
	}
	if found == 0 && runtime.GOMAXPROCS(0) > 1 { // on one processor goroutines seldom meet
		t.Error("two goroutines at one tape were never found out")
	}
	t.Logf("found out %d times", found)
	if inUse, _, _ := dev.Memory(); inUse != 0 {
		t.Errorf("%d bytes are left", inUse)
	}
}

// While one goroutine is inside a kernel, whatever another does is the failure.
func TestUseWithinAKernel(t *testing.T) {
	dev := newDevice(t)
	for name, use := range map[string]func(tape *autograd.Tape, v *autograd.Var){
		"operation": func(tape *autograd.Tape, v *autograd.Var) { ops.Exp(v) },
		"watch":     func(tape *autograd.Tape, v *autograd.Var) { tape.Watch(scalar(t, 2)) },
		"backward":  func(tape *autograd.Tape, v *autograd.Var) { _, _ = tape.Backward(v) },
		"download":  func(tape *autograd.Tape, v *autograd.Var) { _, _ = v.Download() },
		"release":   func(tape *autograd.Tape, v *autograd.Var) { tape.Release() },
	} {
		tape := autograd.NewTape(context.Background(), dev)
		v := ops.Exp(tape.Watch(scalar(t, 1)))
		inside, leave, left := make(chan bool), make(chan bool), make(chan bool)
		go func() {
			tape.Run(func(context.Context, device.Device) error { close(inside); <-leave; return nil })
			close(left)
		}()
		<-inside
		use(tape, v)
		if err := tape.Err(); !errors.Is(err, device.ErrConcurrentUse) {
			t.Errorf("%s: %v", name, err)
		}
		close(leave)
		<-left
		tape.Release()
		if inUse, _, _ := dev.Memory(); inUse != 0 {
			t.Errorf("%s: %d bytes are left", name, inUse)
		}
	}
}
