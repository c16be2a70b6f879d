package main

import (
	"context"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

var dtypes = []struct {
	name  string
	dtype tensor.DType
}{{"bf16", tensor.BFloat16}, {"fp16", tensor.Float16}, {"fp32", tensor.Float32}, {"fp64", tensor.Float64}}

// shape is (B,T,N,D); a partial block comes besides.
type shape struct{ b, t, n, d int }

// operator measures BlockAttnRes with its caches. The limit is the time to move
// the least bytes: the forward reads the sources once and writes h and the
// caches, at the bandwidth of reading; forward and backward read the sources
// twice and write their gradients besides, at the bandwidth of a copy.
func (b *bench) operator() {
	for _, s := range []shape{{2, 4096, 25, 512}, {1, 1023, 32, 512}, {1, 2048, 64, 2048}, {1, 256, 127, 6144}} {
		for _, d := range dtypes {
			b.operatorAt(d.name, d.dtype, s)
		}
	}
	b.growth()
	b.workspace()
}

// operatorAt gives the seconds of forward and backward, 0 where neither their
// figure nor one made of it is wanted.
func (b *bench) operatorAt(name string, d tensor.DType, s shape, madeOfIt ...string) (seconds float64) {
	forward := "blockattnres/forward/" + name + "/" + s.String()
	both := "blockattnres/forward_backward/" + name + "/" + s.String()
	decomposed := "blockattnres/forward_backward/decomposed/" + s.String()
	if d != tensor.BFloat16 || s.n < 25 || s.d > 512 {
		decomposed = forward // the small ops take minutes at the large shapes
	}
	if !b.wants(append(madeOfIt, forward, both, decomposed)...) {
		return 0
	}
	in, grad, err := operands(b.dev, d, s)
	if err != nil {
		b.fail(err)
		return 0
	}
	rows := float64(s.b*s.t) * float64(s.d*d.Size()) // bytes of one tensor
	caches := 2 * float64(s.b*s.t*(s.n+1)*d.Wide().Size())
	l := float64(s.n + 1)
	flops := l * float64(s.b*s.t*s.d)
	if b.wants(forward) {
		bytes := (l+1)*rows + caches
		seconds := b.median(func() error {
			stream := device.NewStream(b.ctx, b.dev)
			defer stream.Release()
			_, err := blockattnres.Forward(stream, in, blockattnres.Caches{RMS: true, Alpha: true})
			return err
		})
		b.report(figure{Name: forward, Value: 1e3 * seconds, Unit: "ms", Limit: 1e3 * bytes / b.read, flops: 6 * flops, bytes: bytes, seconds: seconds})
	}
	if b.wants(append(madeOfIt, both)...) {
		bytes := (3*l+2)*rows + 2*caches
		seconds = b.median(func() error {
			stream := device.NewStream(b.ctx, b.dev)
			defer stream.Release()
			out, err := blockattnres.Forward(stream, in, blockattnres.Caches{RMS: true, Alpha: true})
			if err != nil {
				return err
			}
			_, err = blockattnres.Backward(stream, grad, in, out.Alpha, out.RMS)
			return err
		})
		b.report(figure{Name: both, Value: 1e3 * seconds, Unit: "ms", Limit: 1e3 * bytes / b.copy, flops: 18 * flops, bytes: bytes, seconds: seconds})
	}
	if decomposed != forward && b.wants(decomposed) {
		repeat := b.repeat
		b.repeat = min(repeat, 3) // seconds each
		seconds := b.median(func() error { return runDecomposed(b.ctx, b.dev, in, grad) })
		b.repeat = repeat
		b.report(figure{Name: decomposed, Value: 1e3 * seconds, Unit: "ms"})
	}
	b.dev.Trim()
	return seconds
}

// operands are normal numbers; the gamma is 1 plus some.
func operands(dev *cpu.Device, d tensor.DType, s shape) (in blockattnres.Tensors, grad *tensor.Tensor, err error) {
	noise := make([]float32, 1<<16) // drawn once: the rows need not differ from block to block
	src := random.Source{Seed: 1}
	for i := range noise {
		noise[i] = float32(src.Normal(uint64(i)))
	}
	filled := func(first, scale float64, dims ...int) *tensor.Tensor {
		n := tensor.Shape(dims).Len()
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(first + scale*float64(noise[(i+7*n)%len(noise)]))
		}
		t, e := tensor.FromSlice(x, dims...)
		if e == nil {
			t, e = converted(dev, t, d)
		}
		if e != nil {
			err = e
		}
		return t
	}
	for range s.n {
		in.Blocks = append(in.Blocks, filled(0, 1, s.b, s.t, s.d))
	}
	in.PartialBlock = filled(0, 1, s.b, s.t, s.d)
	in.ProjWeight = filled(0, 0.05, s.d)
	in.RMSNormGamma = filled(1, 0.1, s.d)
	return in, filled(0, 1, s.b, s.t, s.d), err
}

// runDecomposed is the same mathematics by small ops on a tape.
func runDecomposed(ctx context.Context, dev device.Device, in blockattnres.Tensors, grad *tensor.Tensor) error {
	t := autograd.NewTape(ctx, dev)
	defer t.Release()
	vars := blockattnres.Inputs{PartialBlock: t.Watch(in.PartialBlock), ProjWeight: t.Watch(in.ProjWeight), RMSNormGamma: t.Watch(in.RMSNormGamma)}
	for _, x := range in.Blocks {
		vars.Blocks = append(vars.Blocks, t.Watch(x))
	}
	_, err := t.BackwardFrom(blockattnres.Decomposed(vars), grad)
	return err
}

// converted is a copy in another dtype.
func converted(dev *cpu.Device, t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	out, err := tensor.Zeros(d, t.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, dev.Copy(context.Background(), out, t)
}
