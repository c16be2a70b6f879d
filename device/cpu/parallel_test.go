package cpu

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

func TestRunCallsEachChunkOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 7} {
		d := newDevice(t, threads)
		for _, chunks := range []int{-1, 0, 1, 2, 3, 100, 1000} {
			counts := make([]atomic.Int32, max(chunks, 0))
			ok(t, d.run(bg, chunks, each(func(c int) { counts[c].Add(1) })))
			for c := range counts {
				if n := counts[c].Load(); n != 1 {
					t.Fatalf("%d threads: chunk %d of %d was called %d times", threads, c, chunks, n)
				}
			}
		}
	}
}

// run returns when the last chunk has ended, also where that is not the caller's.
func TestRunWaits(t *testing.T) {
	d := newDevice(t, 3)
	for range 20 {
		var running atomic.Int32
		ok(t, d.run(bg, 12, each(func(int) {
			// Whoever comes late is still at work when the others find nothing more to do.
			time.Sleep(time.Duration(running.Add(1)) * time.Millisecond)
			running.Add(-1)
		})))
		if n := running.Load(); n != 0 {
			t.Fatalf("%d chunks are still running", n)
		}
	}
}

// A chunk may itself run a kernel, and many callers may share the workers.
func TestRunNestedAndShared(t *testing.T) {
	d := newDevice(t, 3)
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				err := d.run(bg, 5, each(func(int) {
					if err := d.run(bg, 4, each(func(int) { total.Add(1) })); err != nil {
						t.Error(err)
					}
				}))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != 8*50*5*4 {
		t.Errorf("%d calls", n)
	}
}

func TestRunIsCancelled(t *testing.T) {
	d := newDevice(t, 2)
	for _, chunks := range []int{1, 2, 1000000} {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		called := false
		if err := d.run(ctx, chunks, each(func(int) { called = true })); !errors.Is(err, context.Canceled) || called {
			t.Errorf("%d chunks: %v, called: %v", chunks, err, called)
		}
		ctx, cancel = context.WithCancel(bg)
		var calls atomic.Int64
		err := d.run(ctx, chunks, each(func(int) { calls.Add(1); cancel() }))
		if n := calls.Load(); !errors.Is(err, context.Canceled) || n < 1 || n > 2 {
			t.Errorf("%d chunks: %v after %d calls", chunks, err, n)
		}
	}
	ctx, cancel := context.WithTimeoutCause(bg, time.Millisecond, nil)
	defer cancel()
	if err := d.run(ctx, math.MaxInt, each(func(int) {})); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestClosedDeviceStillComputes(t *testing.T) {
	before := runtime.NumGoroutine()
	d := New(Threads(5), nil)
	ok(t, d.Close())
	ok(t, d.Close())
	var calls atomic.Int64
	ok(t, d.run(bg, 100, each(func(int) { calls.Add(1) })))
	if calls.Load() != 100 {
		t.Errorf("%d calls", calls.Load())
	}
	for range 200 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// Workers end when nobody refers to their device any more.
func TestForgottenDeviceEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	func() {
		d := New(Threads(6))
		ok(t, d.run(bg, 10, each(func(int) {})))
	}()
	for range 500 {
		runtime.GC()
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// everyKernel runs each kernel of these files once, on enough elements for
// many chunks, and gives the outputs.
func everyKernel(t testing.TB, ctx context.Context, d *Device) (outs []*tensor.Tensor, errs []error) {
	r := rand.New(rand.NewPCG(6, 1))
	const rows, cols = 300, 333
	f := func(dt tensor.DType, l layout) *tensor.Tensor {
		return laid(t, l, dt, numbers(r, rows*cols, -3, 3), rows, cols)
	}
	idv := make([]float64, rows)
	for i := range idv {
		idv[i] = float64(r.IntN(rows) / 7)
	}
	ids := laid(t, dense, tensor.Int64, idv, rows)
	conds := make([]float64, rows*cols)
	for i := range conds {
		conds[i] = float64(r.IntN(2))
	}
	cond := laid(t, dense, tensor.Int32, conds, rows, cols)
	do := func(out *tensor.Tensor, err error) { outs, errs = append(outs, out), append(errs, err) }
	for _, dt := range floats {
		x, y, z := f(dt, dense), f(dt, reversed), f(tensor.Float32, gaps)
		out := f(dt, dense)
		do(out, d.Copy(ctx, out, y))
		out = f(tensor.BFloat16, dense)
		do(out, d.Copy(ctx, out, z))
		out = f(dt, gaps)
		do(out, d.Fill(ctx, out, 0.3))
		out = f(dt, dense)
		do(out, d.Upload(ctx, out, x))
		out = f(dt, gaps)
		do(out, d.Download(ctx, out, x))
		out = f(dt, dense)
		do(out, d.Unary(ctx, device.Unary{Func: device.GELU}, out, y))
		out = f(dt, dense)
		do(out, d.UnaryGrad(ctx, device.Unary{Func: device.Tanh}, out, x, z))
		out = f(dt, dense)
		do(out, d.Binary(ctx, device.Div, out, x, y))
		out = f(dt, dense)
		do(out, d.Where(ctx, out, cond, x, z))
		for _, fold := range []device.Reduction{device.Sum, device.MeanSquare, device.Max} {
			for _, shape := range [][]int{{rows, 1}, {1, cols}, {1, 1}} {
				out = laid(t, dense, dt, nil, shape...)
				do(out, d.Reduce(ctx, fold, out, x))
			}
		}
		out = f(dt, dense)
		do(out, d.Gather(ctx, out, z, ids))
		out = f(dt, dense)
		do(out, d.ScatterAdd(ctx, out, ids, x))
	}
	return outs, errs
}

func TestThreadsChangeNoBit(t *testing.T) {
	want, errs := everyKernel(t, bg, newDevice(t, 1))
	for _, err := range errs {
		ok(t, err)
	}
	compare := func(threads int) {
		got, errs := everyKernel(t, bg, newDevice(t, threads))
		for i := range want {
			ok(t, errs[i])
			sameBits(t, label(threads, " threads, call ", i), got[i], want[i])
		}
	}
	for _, threads := range []int{2, 3, 7} {
		compare(threads)
	}
	old := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(old)
	compare(3)
}

func TestEveryKernelIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, errs := everyKernel(t, ctx, newDevice(t, 2))
	for i, err := range errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	_, errs = everyKernel(t, nil, newDevice(t, 2))
	for _, err := range errs {
		ok(t, err)
	}
}

// A context that is cancelled while a kernel runs ends it.
func TestKernelIsCancelledWithin(t *testing.T) {
	d := newDevice(t, 2)
	const n = 1 << 23
	x := must[*tensor.Tensor](t)(laid(t, dense, tensor.Float32, []float64{0.5}, 1).Expand(n))
	out := laid(t, dense, tensor.Float32, nil, n)
	ctx, cancel := context.WithTimeout(bg, 2*time.Millisecond)
	defer cancel()
	if err := d.Unary(ctx, device.Unary{Func: device.Pow, A: 1.7}, out, x); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
