package main

import (
	"fmt"
	"slices"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// product is (batch) products of (m,k) and (k,n); form has a t for each operand
// that is a transposed view.
type product struct {
	batch, m, n, k int
	form           string
}

func (p product) String() string {
	s := fmt.Sprintf("%dx%dx%d", p.m, p.n, p.k)
	if p.batch > 1 {
		s = fmt.Sprintf("%dx%s", p.batch, s)
	}
	if p.form != "nn" {
		s += "/" + p.form
	}
	return s
}

var productShapes = []product{
	{1, 512, 512, 512, "nn"}, {1, 1024, 1024, 1024, "nn"}, {1, 2048, 2048, 2048, "nn"}, {1, 1024, 2048, 512, "nn"},
	{1, 3072, 1152, 384, "nn"}, {1, 3072, 1536, 384, "nn"}, {1, 3072, 384, 1536, "nn"},
	{1, 1024, 1024, 1024, "nt"}, {1, 1024, 1024, 1024, "tn"}, {1, 1024, 1024, 1024, "tt"},
	{72, 256, 256, 64, "nn"},
	{1, 1, 1, 1, "nn"}, {1, 7, 5, 3, "nn"}, {1, 127, 129, 131, "nn"}, {1, 2048, 1, 2048, "nn"}, {1, 1, 2048, 2048, "nn"},
}

// products measures the matrix product on all threads, and in float32 on one.
func (b *bench) products() {
	for _, d := range dtypes[:3] {
		for _, p := range productShapes {
			b.product("matmul/"+d.name+"/"+p.String(), d.name, d.dtype, p, b.dev, b.threads)
		}
	}
	if b.peak["bf16"] > 0 {
		fast := cpu.New(cpu.Threads(b.threads), cpu.FastBFloat16())
		defer fast.Close()
		for _, p := range productShapes {
			b.product("matmul/bf16_fast/"+p.String(), "bf16_fast", tensor.BFloat16, p, fast, b.threads)
		}
	}
	if b.threads > 1 {
		one := cpu.New(cpu.Threads(1))
		defer one.Close()
		for _, p := range productShapes {
			b.product("matmul/fp32/"+p.String()+"/1thread", "fp32", tensor.Float32, p, one, 1)
		}
	}
}

func (b *bench) product(name, kind string, d tensor.DType, p product, dev *cpu.Device, threads int) {
	if !b.wants(name) {
		return
	}
	operand := func(rows, cols int, form byte) *tensor.Tensor {
		if form == 't' {
			rows, cols = cols, rows
		}
		n := p.batch * rows * cols
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i%13-6) / 8
		}
		t, err := tensor.FromSlice(x, p.batch, rows, cols)
		if err == nil {
			t, err = converted(b.dev, t, d)
		}
		if err == nil && form == 't' {
			t, err = t.Transpose(-1, -2)
		}
		b.fail(err)
		return t
	}
	x, y := operand(p.m, p.k, p.form[0]), operand(p.k, p.n, p.form[1])
	stream := device.NewStream(b.ctx, dev)
	defer stream.Release()
	out := stream.Empty(d, p.batch, p.m, p.n)
	if b.err != nil {
		return
	}
	flops := 2 * float64(p.batch) * float64(p.m) * float64(p.n) * float64(p.k)
	calls := max(1, int(2e5/flops)) // one call of a tiny product is too short to be timed
	seconds := b.median(func() error {
		for range calls {
			if err := dev.MatMul(b.ctx, out, x, y); err != nil {
				return err
			}
		}
		return nil
	}) / float64(calls)
	peak := b.peak["fp32"]
	if kind == "bf16_fast" {
		peak = b.peak["bf16"]
	}
	bytes := float64(d.Size()*p.batch) * float64(p.m*p.k+p.k*p.n+p.m*p.n)
	limit := min(peak*float64(threads)/float64(b.threads), flops/bytes*b.read)
	if slices.Min([]int{p.m, p.n, p.k}) > 64 { // in cache, bandwidth does not bound it
		limit = peak * float64(threads) / float64(b.threads)
	}
	b.report(figure{Name: name, Value: flops / seconds / 1e9, Unit: "GFLOP/s", Limit: limit / 1e9, Threads: threads, flops: flops, bytes: bytes, seconds: seconds})
}
