// Package cpu is the host as a device: kernels in Go and, on amd64, in Go
// assembly for AVX-512 and AVX2: the matrix product, the rows of BlockAttnRes
// in 16-bit formats (those of float32 and float64 in AVX-512 alone), attention,
// norms, AdamW, and the functions made of exp. The best that the machine has is
// used; see [Tier]. [FastBFloat16] allows one that has bits of its own.
//
// Results have the same bits for every number of threads and in every tier: each
// kernel cuts its work into chunks whose bounds depend on the shapes alone, or
// whose results do not depend on the cut, and adds partial results in one order.
// Products that are added are fused with the addition where the order says so, by
// a multiply-add that every tier has or emulates; elsewhere they are written
// float32(x*y) or float64(x*y), so that no compiler fuses them.
package cpu

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Device computes on the host. It may be used by many goroutines at once.
type Device struct {
	*workers
	buffers buffers
	fast    bool // FastBFloat16
}

var _ device.Device = (*Device)(nil)

// Option sets up a device.
type Option func(*config)

type config struct {
	threads int
	fast    bool
}

// Threads sets how many threads a kernel may use; the default, also for n < 1,
// is GOMAXPROCS at the time of New. It changes the speed and never the result.
func Threads(n int) Option { return func(c *config) { c.threads = n } }

// FastBFloat16 lets matrix products of two bfloat16 tensors use the processor's
// instructions for them (AVX512_BF16), where it has them: two to three times as
// fast, but with another order of sums, and with subnormal numbers taken as
// zeros. The bits then differ from those of other machines and tiers. Results of
// one row or one column, which are bound by memory, keep the exact order.
func FastBFloat16() Option { return func(c *config) { c.fast = true } }

// New makes a device with its own worker goroutines, which end when it is
// closed or no longer reachable.
func New(opts ...Option) *Device {
	c := config{}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	if c.threads < 1 {
		c.threads = runtime.GOMAXPROCS(0)
	}
	d := &Device{workers: startWorkers(c.threads), fast: c.fast}
	// The workers hold no reference to d, so they can be ended when d is garbage.
	runtime.AddCleanup(d, func(w *workers) { w.stop() }, d.workers)
	return d
}

// Close ends the worker goroutines. Kernels may still be called and then run
// on the caller's thread alone. It is safe to call more than once.
func (d *Device) Close() error {
	if d != nil && d.workers != nil {
		d.stop()
	}
	return nil
}

func (d *Device) run(ctx context.Context, chunks int, t task) error {
	if d == nil {
		return errNil
	}
	if tierErr != nil {
		return tierErr
	}
	return d.workers.run(ctx, chunks, t)
}

// threadCount is how many threads take part in a run; of no device, one.
func (d *Device) threadCount() int {
	if d == nil {
		return 1
	}
	return d.workers.count()
}

// Name is tensor.CPU.
func (d *Device) Name() tensor.Device { return tensor.CPU }

// Sync returns at once: every kernel is complete when its call returns.
func (d *Device) Sync(ctx context.Context) error {
	if ctx == nil {
		return nil
	}
	return ctx.Err()
}

// bytesOf is the memory of a tensor that a check has found to lie on the host.
func bytesOf(t *tensor.Tensor) ([]byte, error) {
	h, ok := t.Memory().(*tensor.Host)
	if !ok {
		return nil, &tensor.ArgError{Op: "cpu", Arg: "memory", Got: fmt.Sprintf("%T", t.Memory()), Want: "host memory", Kind: tensor.ErrDevice}
	}
	if h.Discarded() {
		return nil, &tensor.ArgError{Op: "cpu", Arg: "memory", Got: t.String() + " in memory that was given back", Want: "memory that is still held", Kind: tensor.ErrFreed}
	}
	return h.Bytes(), nil
}

var errNil = &tensor.ArgError{Op: "cpu", Arg: "device", Got: "nil", Want: "one that New made", Kind: tensor.ErrMissing}
