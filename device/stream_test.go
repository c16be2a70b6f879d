package device_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// counted is a device that counts the memory it has handed out, refuses to take
// any back twice, and fails on demand.
type counted struct {
	device.Device
	mu      sync.Mutex
	out     map[tensor.Memory]bool
	wrong   int // frees of what was not out
	kernels int
	fail    error
	refuse  error // of Alloc
	inside  func()
}

func newCounted(t *testing.T) *counted {
	dev := cpu.New(cpu.Threads(1))
	t.Cleanup(func() { _ = dev.Close() })
	return &counted{Device: dev, out: map[tensor.Memory]bool{}}
}

func (c *counted) Alloc(n int) (tensor.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	m, err := c.Device.Alloc(n)
	if err == nil {
		c.out[m] = true
	}
	return m, err
}

func (c *counted) Free(m tensor.Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out[m] {
		c.wrong++
	}
	delete(c.out, m)
	c.Device.Free(m)
}

func (c *counted) Fill(ctx context.Context, out *tensor.Tensor, value float64) error {
	c.mu.Lock()
	c.kernels++
	fail, inside := c.fail, c.inside
	c.mu.Unlock()
	if inside != nil {
		inside()
	}
	if fail != nil {
		return fail
	}
	return c.Device.Fill(ctx, out, value)
}

// check reports how much memory is out.
func (c *counted) check(t *testing.T, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) != want || c.wrong != 0 {
		t.Errorf("%d blocks of memory are out, want %d; %d wrong frees", len(c.out), want, c.wrong)
	}
}

func values(t *testing.T, s *device.Stream, x *tensor.Tensor) []float64 {
	t.Helper()
	host, err := s.Download(x)
	if err != nil {
		t.Fatal(err)
	}
	v, err := host.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func host(t *testing.T, data []float64, shape ...int) *tensor.Tensor {
	t.Helper()
	return must(t)(tensor.FromFloat64s(tensor.Float64, data, shape...))
}

// every calls all methods of a stream that compute, with what the last one gave.
func every(s *device.Stream, x *tensor.Tensor, ids *tensor.Tensor) map[string]*tensor.Tensor {
	neg, d := device.Unary{Func: device.Neg}, tensor.Float64
	ran := false
	out := map[string]*tensor.Tensor{
		"Empty":      s.Empty(d, 2, 2),
		"Upload":     s.Upload(x),
		"Full":       s.Full(d, 1, 2),
		"Copy":       s.Copy(d, x),
		"Unary":      s.Unary(neg, d, x),
		"UnaryGrad":  s.UnaryGrad(neg, d, x, x),
		"Binary":     s.Binary(device.Add, d, x, x),
		"Expand":     s.Expand(x, 2, 2, 2),
		"Reshape":    s.Reshape(x, -1),
		"Reshaped":   s.Reshape(s.Transpose(x, 0, 1), 4), // no view
		"Transpose":  s.Transpose(x, 0, 1),
		"View":       s.View(func() (*tensor.Tensor, error) { return x.Transpose(0, 1) }),
		"Where":      s.Where(d, ids, x, x),
		"Reduce":     s.Reduce(device.Sum, d, x, 0),
		"ReduceTo":   s.ReduceTo(d, x, tensor.Shape{2}),
		"MatMul":     s.MatMul(d, x, x),
		"Gather":     s.Gather(x, ids),
		"ScatterAdd": s.ScatterAdd(d, 3, ids, x),
	}
	if s.Accumulate(out["Full"], out["Full"]) {
		out["Accumulate"] = out["Full"]
	}
	if s.Run(func(context.Context, device.Device) error { ran = true; return nil }) || ran {
		out["Run"] = out["Full"]
	}
	if host, err := s.Download(x); err == nil {
		out["Download"] = host
	}
	if s.Owns(out["Full"]) {
		out["Owns"] = out["Full"]
	}
	s.Retain(out["Full"])
	s.Free(out["Full"], nil, x)
	s.Free(out["Full"])
	return out
}

func TestStreamComputes(t *testing.T) {
	dev := newCounted(t)
	s := device.NewStream(context.Background(), dev)
	x := host(t, []float64{1, 2, 3, 4}, 2, 2)
	ids := must(t)(tensor.FromSlice([]int32{1, 0}, 2))
	out := every(s, x, ids)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	for name, v := range out {
		if v == nil {
			t.Errorf("%s gave nothing", name)
		}
	}
	for name, want := range map[string][]float64{
		"Upload": {1, 2, 3, 4}, "Copy": {1, 2, 3, 4}, "Unary": {-1, -2, -3, -4}, "UnaryGrad": {-1, -2, -3, -4},
		"Binary": {2, 4, 6, 8}, "View": {1, 3, 2, 4}, "Expand": {1, 2, 3, 4, 1, 2, 3, 4}, "Reshape": {1, 2, 3, 4}, "Reshaped": {1, 3, 2, 4}, "Transpose": {1, 3, 2, 4}, "Where": {1, 2, 3, 4}, "Reduce": {4, 6}, "ReduceTo": {4, 6},
		"MatMul": {7, 10, 15, 22}, "Gather": {3, 4, 1, 2}, "ScatterAdd": {3, 4, 1, 2, 0, 0},
	} {
		if got := values(t, s, out[name]); !slices.Equal(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if s.Device() != device.Device(dev) || s.Context() != context.Background() {
		t.Error("device or context")
	}
	s.Release()
	s.Release()
	dev.check(t, 0)
}

// After the first failure every method is safe, does nothing and gives nothing.
func TestFirstFailureSticks(t *testing.T) {
	broken := errors.New("broken")
	x := host(t, []float64{1, 2, 3, 4}, 2, 2)
	ids := must(t)(tensor.FromSlice([]int32{1, 0}, 2))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, start := range map[string]func(dev *counted) (*device.Stream, error){
		"kernel": func(dev *counted) (*device.Stream, error) {
			dev.fail = broken
			s := device.NewStream(context.Background(), dev)
			if v := s.Full(tensor.Float32, 1, 3); v != nil {
				t.Errorf("a failed kernel gave %v", v)
			}
			return s, broken
		},
		"memory": func(dev *counted) (*device.Stream, error) {
			dev.refuse = broken
			s := device.NewStream(context.Background(), dev)
			s.Empty(tensor.Float32, 3)
			return s, broken
		},
		"Fail": func(dev *counted) (*device.Stream, error) {
			s := device.NewStream(context.Background(), dev)
			s.Fail(nil)
			if s.Err() != nil {
				t.Error("no error is a failure")
			}
			s.Fail(broken)
			s.Fail(errors.New("later"))
			return s, broken
		},
		"Run": func(dev *counted) (*device.Stream, error) {
			s := device.NewStream(context.Background(), dev)
			s.Run(func(context.Context, device.Device) error { return broken })
			return s, broken
		},
		"View": func(dev *counted) (*device.Stream, error) {
			s := device.NewStream(context.Background(), dev)
			s.Expand(x, 3, 3)
			return s, tensor.ErrShape
		},
		"cancelled": func(dev *counted) (*device.Stream, error) {
			s := device.NewStream(cancelled, dev)
			s.Full(tensor.Float32, 1, 3)
			s.Run(func(context.Context, device.Device) error { t.Error("a kernel ran"); return nil })
			if dev.kernels != 0 {
				t.Error("a kernel ran")
			}
			return s, context.Canceled
		},
		"released": func(dev *counted) (*device.Stream, error) {
			s := device.NewStream(context.Background(), dev)
			s.Full(tensor.Float32, 1, 3)
			s.Release()
			s.Full(tensor.Float32, 1, 3)
			return s, device.ErrReleased
		},
		"no device": func(dev *counted) (*device.Stream, error) {
			return device.NewStream(context.Background(), nil), tensor.ErrMissing
		},
		"no stream": func(dev *counted) (*device.Stream, error) {
			var s *device.Stream
			s.OnFailure(nil)
			s.Fail(broken)
			return s, tensor.ErrMissing
		},
	} {
		t.Run(name, func(t *testing.T) {
			dev := newCounted(t)
			s, want := start(dev)
			if !errors.Is(s.Err(), want) {
				t.Fatalf("%v, want %v", s.Err(), want)
			}
			first := s.Err().Error()
			dev.kernels = 0
			for method, v := range every(s, x, ids) {
				if v != nil {
					t.Errorf("%s gave %v after a failure", method, v)
				}
			}
			// And what failed calls gave, as arguments of the next.
			for method, v := range every(s, nil, nil) {
				if v != nil {
					t.Errorf("%s gave %v after a failure", method, v)
				}
			}
			if _, err := s.Download(x); !errors.Is(err, want) {
				t.Errorf("Download: %v", err)
			}
			if dev.kernels != 0 {
				t.Errorf("%d kernels ran", dev.kernels)
			}
			if got := s.Err().Error(); got != first {
				t.Errorf("the failure became %q, was %q", got, first)
			}
			s.Release()
			s.Release()
			dev.check(t, 0)
		})
	}
}

// Each nil argument is a failure that says so, without a panic.
func TestStreamNilArguments(t *testing.T) {
	dev := newCounted(t)
	neg, d := device.Unary{Func: device.Neg}, tensor.Float32
	x := zeros(t, d, 2, 2)
	ids := zeros(t, tensor.Int32, 2)
	for name, call := range map[string]func(s *device.Stream){
		"Upload":       func(s *device.Stream) { s.Upload(nil) },
		"Copy":         func(s *device.Stream) { s.Copy(d, nil) },
		"Unary":        func(s *device.Stream) { s.Unary(neg, d, nil) },
		"UnaryGrad g":  func(s *device.Stream) { s.UnaryGrad(neg, d, nil, x) },
		"UnaryGrad x":  func(s *device.Stream) { s.UnaryGrad(neg, d, x, nil) },
		"Binary a":     func(s *device.Stream) { s.Binary(device.Add, d, nil, x) },
		"Binary b":     func(s *device.Stream) { s.Binary(device.Add, d, x, nil) },
		"Accumulate":   func(s *device.Stream) { s.Accumulate(nil, x) },
		"Accumulate x": func(s *device.Stream) { s.Accumulate(x, nil) },
		"Where cond":   func(s *device.Stream) { s.Where(d, nil, x, x) },
		"Where b":      func(s *device.Stream) { s.Where(d, ids, x, nil) },
		"Expand":       func(s *device.Stream) { s.Expand(nil, 2) },
		"Reshape":      func(s *device.Stream) { s.Reshape(nil, 2) },
		"Transpose":    func(s *device.Stream) { s.Transpose(nil, 0, 1) },
		"View":         func(s *device.Stream) { s.View(nil) },
		"Run":          func(s *device.Stream) { s.Run(nil) },
		"Reduce":       func(s *device.Stream) { s.Reduce(device.Sum, d, nil) },
		"ReduceTo":     func(s *device.Stream) { s.ReduceTo(d, nil, tensor.Shape{}) },
		"MatMul":       func(s *device.Stream) { s.MatMul(d, x, nil) },
		"Gather":       func(s *device.Stream) { s.Gather(nil, ids) },
		"Gather ids":   func(s *device.Stream) { s.Gather(x, nil) },
		"Scatter":      func(s *device.Stream) { s.ScatterAdd(d, 2, ids, nil) },
		"Scatter ids":  func(s *device.Stream) { s.ScatterAdd(d, 2, nil, x) },
	} {
		//lint:ignore SA1012 a nil context is allowed
		s := device.NewStream(nil, dev)
		call(s)
		if !errors.Is(s.Err(), tensor.ErrMissing) {
			t.Errorf("%s of nil: %v", name, s.Err())
		}
		s.Release()
	}
	for name, call := range map[string]func(s *device.Stream) error{
		"Download":  func(s *device.Stream) error { _, err := s.Download(nil); return err },
		"bad dtype": func(s *device.Stream) error { s.Empty(0, 2); return s.Err() },
		"bad shape": func(s *device.Stream) error { s.Empty(d, -2); return s.Err() },
		"too large": func(s *device.Stream) error { s.Full(d, 0, 1<<55); return s.Err() },
		"bad rows":  func(s *device.Stream) error { s.ScatterAdd(d, -1, ids, x); return s.Err() },
		"vectors":   func(s *device.Stream) error { s.MatMul(d, ids, x); return s.Err() },
		"inner":     func(s *device.Stream) error { s.MatMul(d, zeros(t, d, 2, 3), x); return s.Err() },
		"axes":      func(s *device.Stream) error { s.Reduce(device.Sum, d, x, 0, 0); return s.Err() },
		"broadcast": func(s *device.Stream) error { s.Binary(device.Add, d, x, zeros(t, d, 3)); return s.Err() },
		"ReduceTo":  func(s *device.Stream) error { s.ReduceTo(d, x, tensor.Shape{3}); return s.Err() },
		"a bad id":  func(s *device.Stream) error { s.Gather(zeros(t, d, 0, 2), ids); return s.Err() },
	} {
		s := device.NewStream(context.Background(), dev)
		err := call(s)
		var arg *tensor.ArgError
		if !errors.As(err, &arg) {
			t.Errorf("%s: %v", name, err)
		}
		s.Release()
	}
	dev.check(t, 0)
}

func TestRetainAndFree(t *testing.T) {
	dev := newCounted(t)
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	x := s.Full(tensor.Float32, 1, 4)
	y := s.Full(tensor.Float32, 2, 4)
	mine := zeros(t, tensor.Float32, 4)
	dev.check(t, 2)
	if !s.Owns(x) || s.Owns(mine) || s.Owns(nil) {
		t.Error("Owns")
	}
	view := must(t)(x.Reshape(2, 2))
	s.Retain(view) // a second holder
	s.Retain(mine)
	s.Free(x)
	dev.check(t, 2)
	if !s.Owns(view) {
		t.Error("freed while held")
	}
	s.Free(view)
	dev.check(t, 1)
	s.Free(view, x, mine, nil) // nobody's any more
	dev.check(t, 1)
	if s.Owns(x) || !s.Owns(y) {
		t.Error("Owns after Free")
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	// Memory of another stream is left alone.
	other := device.NewStream(context.Background(), dev)
	other.Free(y)
	other.Release()
	dev.check(t, 1)
}

// A failed kernel's output goes back at once.
func TestFailedOutputIsFreed(t *testing.T) {
	dev := newCounted(t)
	s := device.NewStream(context.Background(), dev)
	dev.fail = errors.New("broken")
	s.Full(tensor.Float32, 1, 4)
	dev.check(t, 0)
	s.Release()
	dev.check(t, 0)
}

// The context is cancelled while a kernel runs.
func TestCancelledWithinAKernel(t *testing.T) {
	dev := newCounted(t)
	ctx, cancel := context.WithCancel(context.Background())
	s := device.NewStream(ctx, dev)
	x := s.Full(tensor.Float32, 1, 8)
	dev.inside = cancel
	if y := s.Full(tensor.Float32, 2, 100000); y != nil || !errors.Is(s.Err(), context.Canceled) {
		t.Errorf("%v, %v", y, s.Err())
	}
	if _, err := s.Download(x); !errors.Is(err, context.Canceled) {
		t.Errorf("Download: %v", err)
	}
	s.Release()
	dev.check(t, 0)
}

func TestOnFailure(t *testing.T) {
	dev := newCounted(t)
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	times := 0
	s.OnFailure(func(err error) error { times++; return errors.Join(errors.New("here"), err) })
	s.Fail(device.ErrReleased)
	s.Fail(errors.New("later"))
	if err := s.Err(); times != 1 || !errors.Is(err, device.ErrReleased) || !strings.Contains(err.Error(), "here") {
		t.Errorf("explained %d times: %v", times, err)
	}
}

// While one goroutine is inside, another's call is a failure, and its Release
// gives the memory back when the first leaves.
func TestConcurrentUse(t *testing.T) {
	dev := newCounted(t)
	for name, second := range map[string]func(s *device.Stream){
		"kernel":  func(s *device.Stream) { s.Full(tensor.Float32, 1, 4) },
		"Free":    func(s *device.Stream) { s.Free(nil) },
		"Release": func(s *device.Stream) { s.Release() },
	} {
		s := device.NewStream(context.Background(), dev)
		x := s.Full(tensor.Float32, 1, 4)
		entered, done := make(chan bool), make(chan bool)
		var once atomic.Bool
		dev.mu.Lock()
		dev.inside = func() {
			if once.CompareAndSwap(false, true) {
				entered <- true
				<-done
			}
		}
		dev.mu.Unlock()
		finished := make(chan bool)
		go func() {
			s.Full(tensor.Float32, 2, 4)
			close(finished)
		}()
		<-entered
		second(s)
		if !errors.Is(s.Err(), device.ErrConcurrentUse) {
			t.Errorf("%s: %v", name, s.Err())
		}
		close(done)
		<-finished
		if name == "Release" {
			dev.check(t, 0)
		}
		s.Release()
		dev.check(t, 0)
		if v := s.Binary(device.Add, tensor.Float32, x, x); v != nil {
			t.Errorf("%s: computed %v afterwards", name, v)
		}
	}
}

// Streams of their own on one device may be used at the same time.
func TestTwoStreams(t *testing.T) {
	dev := newCounted(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 50 {
				s := device.NewStream(context.Background(), dev)
				x := s.Full(tensor.Float32, float64(i), 10)
				y, err := s.Download(s.Binary(device.Add, tensor.Float32, x, x))
				if err != nil {
					t.Error(err)
					return
				}
				if v, _ := y.Float64s(); v[9] != float64(2*i) {
					t.Errorf("%v + %v is %v", i, i, v[9])
				}
				s.Release()
			}
		})
	}
	wg.Wait()
	dev.check(t, 0)
}

func TestBroadcastAndReduceTo(t *testing.T) {
	dev := newCounted(t)
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	a, b := host(t, []float64{1, 2, 3}, 3, 1), host(t, []float64{10, 20, 30, 40}, 4)
	sum := s.Binary(device.Add, tensor.Float64, a, b)
	if !sum.Shape().Equal(tensor.Shape{3, 4}) {
		t.Fatalf("%v", sum)
	}
	want := []float64{11, 21, 31, 41, 12, 22, 32, 42, 13, 23, 33, 43}
	if got := values(t, s, sum); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	x := host(t, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2, 3, 2)
	for _, c := range []struct {
		shape tensor.Shape
		want  []float64
	}{
		{tensor.Shape{2, 3, 2}, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		{tensor.Shape{3, 2}, []float64{8, 10, 12, 14, 16, 18}},
		{tensor.Shape{1, 3, 1}, []float64{18, 26, 34}},
		{tensor.Shape{3, 1}, []float64{18, 26, 34}},
		{tensor.Shape{2}, []float64{36, 42}},
		{tensor.Shape{}, []float64{78}},
		{tensor.Shape{1}, []float64{78}},
		{tensor.Shape{2, 1, 1}, []float64{21, 57}},
	} {
		out := s.ReduceTo(tensor.Float64, x, c.shape)
		if !out.Shape().Equal(c.shape) {
			t.Fatalf("%v, want %v: %v", out, c.shape, s.Err())
		}
		if got := values(t, s, out); !slices.Equal(got, c.want) {
			t.Errorf("to %v: %v, want %v", c.shape, got, c.want)
		}
	}
	// Batches of matrices against one matrix.
	m := s.MatMul(tensor.Float64, host(t, []float64{1, 0, 0, 1, 2, 0, 0, 2}, 2, 2, 2), host(t, []float64{1, 2, 3, 4}, 2, 2))
	if got := values(t, s, m); !slices.Equal(got, []float64{1, 2, 3, 4, 2, 4, 6, 8}) {
		t.Errorf("%v", got)
	}
	acc := s.Full(tensor.Float64, 1, 2, 2)
	if !s.Accumulate(acc, host(t, []float64{5, 6}, 2)) || !slices.Equal(values(t, s, acc), []float64{6, 7, 6, 7}) {
		t.Errorf("%v", s.Err())
	}
}
