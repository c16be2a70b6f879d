package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lamina-go/lamina/tensor"
)

// ErrConcurrentUse is the failure of a Stream that two goroutines used at the same time.
var ErrConcurrentUse = errors.New("used by two goroutines at the same time, or within its own Run")

// ErrReleased is the failure of a Stream that is used after Release.
var ErrReleased = errors.New("used after Release")

// Stream runs kernels in order on one device, owns the memory they allocate,
// and keeps the first failure: after it, every method does nothing and gives
// nil, which is safe to pass on. A Stream belongs to one goroutine at a time;
// use by two at once is a failure of its own.
type Stream struct {
	dev Device
	ctx context.Context

	busy     sync.Mutex
	*holding // nil once it is released
	released bool
	ending   atomic.Bool // Release came while another goroutine was inside

	failed  sync.Mutex
	err     error
	explain func(error) error // adds where a failure happened; see OnFailure
}

// holding is what a stream leaves to those after it.
type holding struct {
	owned   map[tensor.Memory]int // references to memory of this stream
	tensors tensor.Arena
}

var holdings = sync.Pool{New: func() any { return &holding{owned: map[tensor.Memory]int{}} }}

// NewStream makes a stream; a nil ctx is context.Background(). Without a
// device the stream has failed from the start.
func NewStream(ctx context.Context, dev Device) *Stream {
	if ctx == nil {
		ctx = context.Background()
	}
	s := &Stream{dev: dev, ctx: ctx, holding: holdings.Get().(*holding)}
	if dev == nil {
		s.err = noDevice()
	}
	return s
}

// Device is where the stream computes.
func (s *Stream) Device() Device {
	if s == nil {
		return nil
	}
	return s.dev
}

// Context is the context that cancels the stream's kernels.
func (s *Stream) Context() context.Context {
	if s == nil {
		return context.Background()
	}
	return s.ctx
}

// Err is the first failure, or nil.
func (s *Stream) Err() error {
	if s == nil {
		return argError("stream", "stream", "nil", "a stream", tensor.ErrMissing)
	}
	s.failed.Lock()
	defer s.failed.Unlock()
	if s.err == nil && s.dev == nil {
		return noDevice() // a Stream that NewStream did not make
	}
	return s.err
}

func noDevice() error { return argError("stream", "device", "nil", "a device", tensor.ErrMissing) }

// Fail makes err the stream's failure unless it has one already.
func (s *Stream) Fail(err error) {
	if s == nil || err == nil {
		return
	}
	s.failed.Lock()
	explain := s.explain
	first := s.err == nil
	if first {
		s.err = err
	}
	s.failed.Unlock()
	if !first || explain == nil {
		return
	}
	if more := explain(err); more != nil { // it may ask the stream
		s.failed.Lock()
		s.err = more
		s.failed.Unlock()
	}
}

// OnFailure sets a function that adds to the first failure what its place
// knows; where it gives nil the failure stays as it was.
func (s *Stream) OnFailure(explain func(error) error) {
	if s == nil {
		return
	}
	s.failed.Lock()
	defer s.failed.Unlock()
	s.explain = explain
}

// enter reports whether the stream may be used now; if so, leave must follow.
func (s *Stream) enter() bool {
	if s == nil || s.Err() != nil {
		return false
	}
	if !s.busy.TryLock() {
		s.Fail(ErrConcurrentUse)
		return false
	}
	if s.released {
		s.busy.Unlock()
		s.Fail(ErrReleased)
		return false
	}
	return true
}

func (s *Stream) leave() {
	s.busy.Unlock()
	if s.ending.Load() && s.busy.TryLock() {
		defer s.busy.Unlock()
		s.release()
	}
}

// Run runs one kernel, or several, unless the stream has failed; an error
// becomes the stream's failure. It is how fused kernels are called.
func (s *Stream) Run(kernel func(ctx context.Context, dev Device) error) bool {
	if !s.enter() {
		return false
	}
	defer s.leave()
	err := s.ctx.Err()
	if err == nil && kernel == nil {
		err = argError("run", "kernel", "nil", "a function", tensor.ErrMissing)
	}
	if err == nil {
		err = kernel(s.ctx, s.dev)
	}
	s.Fail(err)
	return err == nil
}

// Try is Run for a kernel that the device may decline: an error that wraps
// errors.ErrUnsupported is no failure, and declined is then true.
func (s *Stream) Try(kernel func(ctx context.Context, dev Device) error) (declined bool) {
	s.Run(func(ctx context.Context, dev Device) error {
		if kernel == nil {
			return argError("try", "kernel", "nil", "a function", tensor.ErrMissing)
		}
		err := kernel(ctx, dev)
		if declined = errors.Is(err, errors.ErrUnsupported); declined {
			return nil
		}
		return err
	})
	return declined
}

// Empty is a new row-major tensor of undefined content, owned by the stream.
func (s *Stream) Empty(dtype tensor.DType, shape ...int) *tensor.Tensor {
	if !s.enter() {
		return nil
	}
	defer s.leave()
	return s.alloc(dtype, shape)
}

func (s *Stream) alloc(dtype tensor.DType, shape []int) *tensor.Tensor {
	if err := tensor.Shape(shape).Check(); err != nil {
		s.Fail(err)
		return nil
	}
	m, err := s.dev.Alloc(tensor.Shape(shape).Len() * dtype.Size())
	if err != nil {
		s.Fail(err)
		return nil
	}
	t, err := s.tensors.New(m, dtype, shape...)
	if err != nil {
		s.dev.Free(m)
		s.Fail(err)
		return nil
	}
	s.owned[m] = 1
	return t
}

// compute allocates an output and runs a kernel that writes it.
func (s *Stream) compute(dtype tensor.DType, shape []int, kernel func(out *tensor.Tensor) error) *tensor.Tensor {
	if !s.enter() {
		return nil
	}
	defer s.leave()
	if err := s.ctx.Err(); err != nil {
		s.Fail(err)
		return nil
	}
	out := s.alloc(dtype, shape)
	if out == nil {
		return nil
	}
	if err := kernel(out); err != nil {
		s.Fail(err)
		s.free(out)
		return nil
	}
	return out
}

// Owns reports whether the tensor's memory is the stream's.
func (s *Stream) Owns(t *tensor.Tensor) bool {
	if t == nil || !s.enter() {
		return false
	}
	defer s.leave()
	return s.owned[t.Memory()] > 0
}

// Retain counts one more holder of a tensor's memory if the stream owns it, so
// that one more Free is needed.
func (s *Stream) Retain(t *tensor.Tensor) {
	if t == nil || !s.enter() {
		return
	}
	defer s.leave()
	if s.owned[t.Memory()] > 0 {
		s.owned[t.Memory()]++
	}
}

// Sole reports whether the stream owns a tensor's memory and nobody else holds it.
func (s *Stream) Sole(t *tensor.Tensor) bool {
	if t == nil || !s.enter() {
		return false
	}
	defer s.leave()
	return s.owned[t.Memory()] == 1
}

// Free gives the memory of tensors back before Release does, once each holder
// has done so. Tensors whose memory the stream does not own are left alone.
func (s *Stream) Free(ts ...*tensor.Tensor) {
	if !s.enter() {
		return
	}
	defer s.leave()
	for _, t := range ts {
		s.free(t)
	}
}

func (s *Stream) free(t *tensor.Tensor) {
	m := t.Memory()
	if m == nil {
		return
	}
	switch n := s.owned[m]; {
	case n > 1:
		s.owned[m] = n - 1
	case n == 1:
		delete(s.owned, m)
		s.dev.Free(m)
	}
}

// Release gives back all memory that the stream owns and ends its use. It
// waits for kernels that were queued. It is safe to call more than once. While
// another goroutine is inside the stream it is ErrConcurrentUse, and the memory
// is given back when that one leaves.
func (s *Stream) Release() {
	if s == nil || s.dev == nil {
		return
	}
	s.ending.Store(true)
	if !s.busy.TryLock() {
		s.Fail(ErrConcurrentUse)
		return
	}
	defer s.busy.Unlock()
	s.release()
}

func (s *Stream) release() {
	if s.released {
		return
	}
	s.released = true
	ctx := s.ctx
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	s.Fail(s.dev.Sync(ctx))
	for m := range s.owned {
		s.dev.Free(m)
	}
	clear(s.owned)
	holdings.Put(s.holding)
	s.holding = nil
}

// missing is the failure that an argument is nil.
func (s *Stream) missing(op, arg string) {
	s.Fail(argError(op, arg, "nil", "a tensor", tensor.ErrMissing))
}

// Upload copies a host tensor to the device.
func (s *Stream) Upload(host *tensor.Tensor) *tensor.Tensor {
	if host == nil {
		s.missing("upload", "tensor")
		return nil
	}
	return s.compute(host.DType(), host.Shape(), func(out *tensor.Tensor) error { return s.dev.Upload(s.ctx, out, host) })
}

// Download copies a tensor to the host, in row-major order. It returns the
// stream's failure if there is one.
func (s *Stream) Download(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	if t == nil {
		return nil, argError("download", "tensor", "nil", "a tensor", tensor.ErrMissing)
	}
	host, err := tensor.Zeros(t.DType(), t.Shape()...)
	if err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, s.Err()
	}
	defer s.leave()
	if err := s.dev.Download(s.ctx, host, t); err != nil {
		s.Fail(err)
		return nil, s.Err()
	}
	return host, nil
}

// Full is a tensor that holds one value everywhere.
func (s *Stream) Full(dtype tensor.DType, value float64, shape ...int) *tensor.Tensor {
	return s.compute(dtype, shape, func(out *tensor.Tensor) error { return s.dev.Fill(s.ctx, out, value) })
}

// Copy is a row-major copy converted to dtype.
func (s *Stream) Copy(dtype tensor.DType, x *tensor.Tensor) *tensor.Tensor {
	return s.compute(dtype, x.Shape(), func(out *tensor.Tensor) error { return s.dev.Copy(s.ctx, out, x) })
}

// Unary is f(x) as dtype.
func (s *Stream) Unary(f Unary, dtype tensor.DType, x *tensor.Tensor) *tensor.Tensor {
	return s.compute(dtype, x.Shape(), func(out *tensor.Tensor) error { return s.dev.Unary(s.ctx, f, out, x) })
}

// UnaryGrad is g * f'(x) as dtype.
func (s *Stream) UnaryGrad(f Unary, dtype tensor.DType, g, x *tensor.Tensor) *tensor.Tensor {
	return s.compute(dtype, x.Shape(), func(out *tensor.Tensor) error { return s.dev.UnaryGrad(s.ctx, f, out, g, x) })
}

// Binary is f(a, b) as dtype; a and b are broadcast.
func (s *Stream) Binary(f Binary, dtype tensor.DType, a, b *tensor.Tensor) *tensor.Tensor {
	shape, a, b := s.broadcast(a, b)
	return s.compute(dtype, shape, func(out *tensor.Tensor) error { return s.dev.Binary(s.ctx, f, out, a, b) })
}

// Accumulate adds x, broadcast, to acc in place.
func (s *Stream) Accumulate(acc, x *tensor.Tensor) bool {
	return s.Run(func(ctx context.Context, dev Device) error {
		if acc == nil {
			return argError("accumulate", "acc", "nil", "a tensor", tensor.ErrMissing)
		}
		if x == nil || !x.Shape().Equal(acc.Shape()) {
			var err error
			if x, err = s.tensors.Expand(x, acc.Shape()...); err != nil {
				return err
			}
		}
		return dev.Binary(ctx, Add, acc, acc, x)
	})
}

// broadcast expands two tensors to one shape; a failure sticks.
func (s *Stream) broadcast(a, b *tensor.Tensor) (tensor.Shape, *tensor.Tensor, *tensor.Tensor) {
	if s.Err() != nil {
		return nil, a, b
	}
	if a.Shape().Equal(b.Shape()) {
		return a.Shape(), a, b
	}
	shape, err := tensor.Broadcast(a.Shape(), b.Shape())
	if err != nil {
		s.Fail(err)
		return nil, nil, nil
	}
	return shape, s.Expand(a, shape...), s.Expand(b, shape...)
}

// Expand is t.Expand with the failure kept; t itself where it has the shape.
func (s *Stream) Expand(t *tensor.Tensor, shape ...int) *tensor.Tensor {
	if t != nil && s.Err() == nil && t.Shape().Equal(shape) {
		return t
	}
	if !s.enter() {
		return nil
	}
	defer s.leave()
	return s.kept(s.tensors.Expand(t, shape...))
}

// Reshape is the elements of t, in row-major order, under another shape; one
// size may be -1. It is t itself where it has the shape, a copy where the
// strides allow no view.
func (s *Stream) Reshape(t *tensor.Tensor, shape ...int) *tensor.Tensor {
	if t != nil && s.Err() == nil && t.Shape().Equal(shape) {
		return t
	}
	v, ok := s.reshaped(t, shape)
	if v == nil && ok {
		v, _ = s.reshaped(s.Copy(t.DType(), t), shape)
	}
	return v
}

// reshaped is a view of t, or nil, and ok where only the strides are in the way.
func (s *Stream) reshaped(t *tensor.Tensor, shape []int) (v *tensor.Tensor, ok bool) {
	if !s.enter() {
		return nil, false
	}
	defer s.leave()
	v, err := s.tensors.TryReshape(t, shape...)
	s.Fail(err)
	return v, err == nil
}

// Transpose is t.Transpose with the failure kept.
func (s *Stream) Transpose(t *tensor.Tensor, axis0, axis1 int) *tensor.Tensor {
	if !s.enter() {
		return nil
	}
	defer s.leave()
	return s.kept(s.tensors.Transpose(t, axis0, axis1))
}

// kept is a tensor, or nil and the failure kept.
func (s *Stream) kept(t *tensor.Tensor, err error) *tensor.Tensor {
	if err != nil {
		s.Fail(err)
		return nil
	}
	return t
}

// View runs a view function and keeps its failure.
func (s *Stream) View(view func() (*tensor.Tensor, error)) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	if view == nil {
		s.missing("view", "function")
		return nil
	}
	return s.kept(view())
}

// Where is a where cond is not 0, else b, all broadcast.
func (s *Stream) Where(dtype tensor.DType, cond, a, b *tensor.Tensor) *tensor.Tensor {
	shape, a, b := s.broadcast(a, b)
	if s.Err() != nil {
		return nil
	}
	shape, err := tensor.Broadcast(shape, cond.Shape())
	if err != nil {
		s.Fail(err)
		return nil
	}
	cond, a, b = s.Expand(cond, shape...), s.Expand(a, shape...), s.Expand(b, shape...)
	return s.compute(dtype, shape, func(out *tensor.Tensor) error { return s.dev.Where(s.ctx, out, cond, a, b) })
}

// Reduce folds the given axes of x (none: all), which are left with size 1.
func (s *Stream) Reduce(f Reduction, dtype tensor.DType, x *tensor.Tensor, axes ...int) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	folded, err := x.Shape().Axes(axes)
	if err != nil {
		s.Fail(err)
		return nil
	}
	var sizes [tensor.MaxRank]int
	shape := append(tensor.Shape(sizes[:0]), x.Shape()...)
	for _, a := range folded {
		shape[a] = 1
	}
	return s.compute(dtype, shape, func(out *tensor.Tensor) error { return s.dev.Reduce(s.ctx, f, out, x) })
}

// ReduceTo sums x to a shape that broadcasts to x's: what the gradient of a broadcast is.
func (s *Stream) ReduceTo(dtype tensor.DType, x *tensor.Tensor, shape tensor.Shape) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	var sizes [tensor.MaxRank]int
	kept := tensor.Shape(sizes[:x.Rank()])
	for i := range kept {
		kept[i] = 1
		if j := i - (x.Rank() - len(shape)); j >= 0 {
			kept[i] = shape[j]
		}
	}
	var out *tensor.Tensor
	if kept.Equal(x.Shape()) {
		out = s.Copy(dtype, x)
	} else {
		out = s.compute(dtype, kept, func(out *tensor.Tensor) error { return s.dev.Reduce(s.ctx, Sum, out, x) })
	}
	return s.Reshape(out, shape...)
}

// MatMul is a (...,M,K) times b (...,K,N) as dtype; leading axes are broadcast.
func (s *Stream) MatMul(dtype tensor.DType, a, b *tensor.Tensor) *tensor.Tensor {
	if s.Err() != nil {
		return nil
	}
	if a == nil || b == nil {
		s.missing("matmul", "operand")
		return nil
	}
	if a.Rank() < 2 || b.Rank() < 2 {
		s.Fail(argError("matmul", "operands", fmt.Sprintf("%v and %v", a.Shape(), b.Shape()), "at least 2 axes each", tensor.ErrRank))
		return nil
	}
	ar, br := a.Rank(), b.Rank()
	batch, err := tensor.Broadcast(a.Shape()[:ar-2], b.Shape()[:br-2])
	if err != nil {
		s.Fail(err)
		return nil
	}
	var sizes [tensor.MaxRank]int
	shape := append(sizes[:0], batch...)
	a = s.Expand(a, append(shape, a.Dim(-2), a.Dim(-1))...)
	b = s.Expand(b, append(shape, b.Dim(-2), b.Dim(-1))...)
	shape = append(shape, a.Dim(-2), b.Dim(-1))
	return s.compute(dtype, shape, func(out *tensor.Tensor) error { return s.dev.MatMul(s.ctx, out, a, b) })
}

// Gather is rows ids (n) of table (V,D), in table's dtype.
func (s *Stream) Gather(table, ids *tensor.Tensor) *tensor.Tensor {
	if table == nil || ids == nil {
		s.missing("gather", "table or ids")
		return nil
	}
	return s.compute(table.DType(), []int{ids.Len(), table.Dim(1)}, func(out *tensor.Tensor) error { return s.dev.Gather(s.ctx, out, table, ids) })
}

// ScatterAdd is a (rows,D) tensor of zeros to which row i of x (n,D) was added at row ids[i].
func (s *Stream) ScatterAdd(dtype tensor.DType, rows int, ids, x *tensor.Tensor) *tensor.Tensor {
	return s.compute(dtype, []int{rows, x.Dim(1)}, func(out *tensor.Tensor) error {
		if err := s.dev.Fill(s.ctx, out, 0); err != nil {
			return err
		}
		return s.dev.ScatterAdd(s.ctx, out, ids, x)
	})
}
