// Package cascade runs the BlockAttnRes operator as the precision standard asks:
// three chains from one set of inputs. The golden is the definition in float64,
// the benchmark the definition in the tensors' dtype, and the kernel is the
// fused forward, which writes the caches, then the fused backward, which
// consumes them. Every output and every gradient is compared.
//
// What does not fit into the memory allowed is generated, computed and judged in
// slices of tokens: the operator is local to a token, and the gradients of the
// weights, which are sums over tokens, are carried in float64.
package cascade

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Case is one set of inputs and how it is judged.
type Case struct {
	B, T, N, D int
	DType      tensor.DType
	Scale      float64
	RMSNorm    bool
	Partial    bool // a partial block besides the N
	Ones       bool // gamma is ones, else random and signed
	Seed       uint64
	Inputs     *precision.Level // distributions of a level; nil: normal numbers, as in the published test
	Compatible bool             // what the published test computes: a float32 golden, the first block's gradient only
	Memory     int              // bytes that may be used, roughly; 0: no limit
}

// String names the case.
func (c Case) String() string {
	s := fmt.Sprintf("b%d_t%d_n%d_d%d_%v_scale%v", c.B, c.T, c.N, c.D, c.DType, c.Scale)
	if !c.RMSNorm {
		s += "_nonorm"
	}
	if !c.Partial {
		s += "_nopartial"
	}
	if c.Ones {
		s += "_ones"
	}
	return fmt.Sprintf("%s_seed%d", s, c.Seed)
}

// Check reports what Run would refuse.
func (c Case) Check() error {
	bad := func(arg string, got any, want string) error {
		return &tensor.ArgError{Arg: arg, Got: fmt.Sprint(got), Want: want, Kind: tensor.ErrValue}
	}
	switch {
	case c.B < 0 || c.B > 1<<20:
		return bad("b", c.B, "0 to 2^20")
	case c.T < 0 || c.T > 1<<30:
		return bad("t", c.T, "0 to 2^30")
	case c.N < 1 || c.N > 127:
		return bad("n", c.N, "1 to 127")
	case c.D < 1 || c.D > 1<<20:
		return bad("d", c.D, "1 to 2^20")
	case !c.DType.IsFloat():
		return bad("dtype", c.DType, "a floating-point type")
	case math.IsNaN(c.Scale) || math.IsInf(c.Scale, 0):
		return bad("scale", c.Scale, "a finite number")
	case c.Compatible && !(c.RMSNorm && c.Partial):
		return bad("compatible", "without RMSNorm or a partial block", "both: the published test cannot run otherwise")
	}
	return nil
}

// sources is L.
func (c Case) sources() int {
	if c.Partial {
		return c.N + 1
	}
	return c.N
}

// perElement is about how many bytes the chains take for each element of the L
// rows, what waits for the garbage collector included.
const perElement = 240

// Slices is into how many slices of tokens the case is cut.
func (c Case) Slices() int {
	n := c.tokensAtOnce()
	return max(1, (c.B*c.T+n-1)/n)
}

func (c Case) tokensAtOnce() int {
	tokens := max(1, c.B*c.T)
	if c.Memory <= 0 {
		return tokens
	}
	return max(1, min(tokens, c.Memory/(c.sources()*c.D*perElement)))
}

// inputs are the operands of a slice on the host.
type inputs struct {
	blockattnres.Tensors
	gradH *tensor.Tensor
}

const (
	streamPartial uint64 = 1000 + iota
	streamGradH
	streamWeight
	streamGamma
	streamLevel
)

// distribution is that of an input.
func (c Case) distribution(stream uint64) precision.Distribution {
	switch {
	case stream == streamGamma && c.Ones:
		return precision.Constant("ones", 1)
	case stream == streamWeight:
		return precision.Normal(0, 1/math.Sqrt(float64(4*c.D)))
	case stream == streamGamma || c.Inputs == nil:
		return precision.Normal(0, 1)
	}
	return precision.InputsOf(*c.Inputs, random.Source{Seed: c.Seed, Stream: streamLevel + stream})
}

func (c Case) tensor(stream uint64, first int, shape ...int) (*tensor.Tensor, error) {
	v := make([]float64, tensor.Shape(shape).Len())
	c.distribution(stream).Fill(v, random.Source{Seed: c.Seed, Stream: stream}, uint64(first))
	return tensor.FromFloat64s(c.DType, v, shape...)
}

// slice makes the inputs of count tokens from first on; the shape of all at once is (B,T,D).
func (c Case) slice(first, count int) (in inputs, err error) {
	shape := []int{1, count, c.D}
	if count == c.B*c.T {
		shape = []int{c.B, c.T, c.D}
	}
	in.Blocks = make([]*tensor.Tensor, c.N)
	var makers []func() error
	add := func(to **tensor.Tensor, stream uint64) {
		makers = append(makers, func() (err error) { *to, err = c.tensor(stream, first*c.D, shape...); return err })
	}
	for i := range in.Blocks {
		add(&in.Blocks[i], uint64(i))
	}
	if c.Partial {
		add(&in.PartialBlock, streamPartial)
	}
	add(&in.gradH, streamGradH)
	makers = append(makers, func() (err error) { in.ProjWeight, err = c.tensor(streamWeight, 0, c.D); return err })
	if c.RMSNorm {
		makers = append(makers, func() (err error) { in.RMSNormGamma, err = c.tensor(streamGamma, 0, c.D); return err })
	}
	return in, parallel(makers)
}

// parallel runs functions on all processors.
func parallel(list []func() error) error {
	errs := make([]error, len(list))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(len(list), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = list[i]()
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// chain is the results of one chain for a slice; the order is that of names.
type chain struct {
	of      []*tensor.Tensor // outputs and gradients of the rows, on the host
	weights [][]float64      // the gradients of the weights
}

// names are the outputs in the order of all tables; the last ones are the
// gradients of the weights.
func (c Case) names() (all []string, weights int) {
	all = append(all, "output")
	if c.RMSNorm {
		all = append(all, "rms_cache")
	}
	all = append(all, "alpha_cache")
	for i := range c.N {
		if i == 0 || !c.Compatible {
			all = append(all, fmt.Sprintf("grad_blocks[%d]", i))
		}
	}
	if c.Partial {
		all = append(all, "grad_partial_block")
	}
	all, weights = append(all, "grad_proj_weight"), 1
	if c.RMSNorm {
		all, weights = append(all, "grad_rmsnorm_gamma"), 2
	}
	return all, weights
}

func (c Case) options() []blockattnres.Option {
	o := []blockattnres.Option{blockattnres.Scale(c.Scale)}
	if !c.RMSNorm {
		o = append(o, blockattnres.WithoutRMSNorm())
	}
	return o
}

// cache is the dtype of the kernel's caches.
func (c Case) cache() tensor.DType { return c.DType.Wide() }

// Run runs the three chains on a device and compares them. progress, if it is
// not nil, is told how many slices of how many are done. Errors: what Check
// refuses, what the device refuses, and ctx's.
func (c Case) Run(ctx context.Context, dev device.Device, progress func(done, all int)) ([]precision.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if dev == nil {
		return nil, &tensor.ArgError{Arg: "device", Got: "nil", Want: "one", Kind: tensor.ErrMissing}
	}
	if ctx == nil {
		ctx = context.Background()
	}
	names, weights := c.names()
	rows := len(names) - weights
	comparisons := make([]*precision.Comparison, len(names))
	for i, name := range names {
		d := c.DType
		if name == "rms_cache" || name == "alpha_cache" {
			d = c.cache()
		}
		f, _ := precision.FormatOf(d)
		comparisons[i] = precision.NewComparison(name, f, precision.Options{Compatible: c.Compatible})
	}
	sums := [3][][]float64{} // kernel, benchmark, golden
	for k := range sums {
		for range weights {
			sums[k] = append(sums[k], make([]float64, c.D))
		}
	}
	tokens, step := c.B*c.T, c.tokensAtOnce()
	slices := c.Slices()
	for s := range slices {
		first := s * step
		in, err := c.slice(first, min(step, tokens-first))
		if err != nil {
			return nil, err
		}
		kernel, err := c.kernel(ctx, dev, in, slices > 1)
		if err != nil {
			return nil, err
		}
		benchmark, err := c.decomposed(ctx, dev, in, c.DType)
		if err != nil {
			return nil, err
		}
		wide := tensor.Float64
		if c.Compatible {
			wide = tensor.Float32
		}
		golden, err := c.decomposed(ctx, dev, in, wide)
		if err != nil {
			return nil, err
		}
		in = inputs{}
		var list []func() error
		for i := range rows {
			list = append(list, func() error {
				var v [3][]float64
				for k, ch := range []chain{kernel, benchmark, golden} {
					x, err := ch.of[i].Float64s()
					if err != nil {
						return err
					}
					v[k], ch.of[i] = x, nil
				}
				return comparisons[i].Add(v[0], v[1], v[2])
			})
		}
		if err := parallel(list); err != nil {
			return nil, err
		}
		for k, ch := range []chain{kernel, benchmark, golden} {
			for i, w := range ch.weights {
				for j, x := range w {
					if slices == 1 {
						sums[k][i][j] = x // and not 0 + x: the sign of a zero
					} else {
						sums[k][i][j] += x
					}
				}
			}
		}
		if progress != nil {
			progress(s+1, slices)
		}
	}
	out := make([]precision.Result, len(names))
	for i, comparison := range comparisons {
		if i >= rows {
			w := i - rows
			for k := range 2 { // the golden stays as it is
				for j, x := range sums[k][w] {
					sums[k][w][j] = tensor.Round(c.DType, x)
				}
			}
			if err := comparison.Add(sums[0][w], sums[1][w], sums[2][w]); err != nil {
				return nil, err
			}
		}
		out[i] = comparison.Result()
	}
	return out, nil
}

// kernel is the fused chain. For a slice of several the weight gradients are
// asked for in float64.
func (c Case) kernel(ctx context.Context, dev device.Device, in inputs, several bool) (chain, error) {
	s := device.NewStream(ctx, dev)
	defer s.Release()
	up := func(x *tensor.Tensor) *tensor.Tensor {
		if x == nil {
			return nil
		}
		return s.Upload(x)
	}
	if dev.Name() == tensor.CPU { // where it lies already
		up = func(x *tensor.Tensor) *tensor.Tensor { return x }
	}
	placed := blockattnres.Tensors{PartialBlock: up(in.PartialBlock), ProjWeight: up(in.ProjWeight), RMSNormGamma: up(in.RMSNormGamma)}
	for _, b := range in.Blocks {
		placed.Blocks = append(placed.Blocks, up(b))
	}
	gradH := up(in.gradH)
	if err := s.Err(); err != nil {
		return chain{}, err
	}
	out, err := blockattnres.Forward(s, placed, blockattnres.Caches{RMS: c.RMSNorm, Alpha: true}, c.options()...)
	if err != nil {
		return chain{}, err
	}
	g, err := c.backward(s, dev, placed, gradH, out, several)
	if err != nil {
		return chain{}, err
	}
	return c.gather(s, out.H, out.RMS, out.Alpha, g.Blocks, g.PartialBlock, g.ProjWeight, g.RMSNormGamma)
}

func (c Case) backward(s *device.Stream, dev device.Device, in blockattnres.Tensors, gradH *tensor.Tensor, out *blockattnres.Outputs, several bool) (*blockattnres.Grads, error) {
	if !several {
		return blockattnres.Backward(s, gradH, in, out.Alpha, out.RMS, c.options()...)
	}
	g := &blockattnres.Grads{ProjWeight: s.Empty(tensor.Float64, c.D)}
	for _, b := range in.Blocks {
		g.Blocks = append(g.Blocks, s.Empty(c.DType, b.Shape()...))
	}
	if c.Partial {
		g.PartialBlock = s.Empty(c.DType, in.PartialBlock.Shape()...)
	}
	if c.RMSNorm {
		g.RMSNormGamma = s.Empty(tensor.Float64, c.D)
	}
	a := &device.BlockAttnResArgs{Blocks: in.Blocks, PartialBlock: in.PartialBlock, ProjWeight: in.ProjWeight, RMSNormGamma: in.RMSNormGamma, Scale: c.Scale, Eps: 1e-6, RMSNorm: c.RMSNorm}
	s.Run(func(ctx context.Context, _ device.Device) error {
		return dev.(device.BlockAttnRes).BlockAttnResBackward(ctx, a, out, gradH, g) // Forward has found that it is one
	})
	return g, s.Err()
}

// gather brings the results of a chain to the host.
func (c Case) gather(s *device.Stream, h, rms, alpha *tensor.Tensor, blocks []*tensor.Tensor, partial, w, gamma *tensor.Tensor) (ch chain, err error) {
	get := func(x *tensor.Tensor) *tensor.Tensor {
		var host *tensor.Tensor
		if err == nil {
			host, err = s.Download(x)
		}
		return host
	}
	ch.of = append(ch.of, get(h))
	if c.RMSNorm {
		ch.of = append(ch.of, get(rms))
	}
	ch.of = append(ch.of, get(alpha))
	for i, b := range blocks {
		if i == 0 || !c.Compatible {
			ch.of = append(ch.of, get(b))
			s.Free(b)
		}
	}
	if c.Partial {
		ch.of = append(ch.of, get(partial))
	}
	for _, x := range []*tensor.Tensor{w, gamma} {
		if x == nil || err != nil {
			continue
		}
		var v []float64
		if v, err = get(x).Float64s(); err == nil {
			ch.weights = append(ch.weights, v)
		}
	}
	return ch, err
}

// decomposed is the definition in dtype d, differentiated by the tape.
func (c Case) decomposed(ctx context.Context, dev device.Device, in inputs, d tensor.DType) (chain, error) {
	tape := autograd.NewTape(ctx, dev)
	defer tape.Release()
	place := func(x *tensor.Tensor) *tensor.Tensor {
		if dev.Name() != tensor.CPU {
			x = tape.Upload(x)
		}
		if x.DType() != d {
			x = tape.Copy(d, x)
		}
		return x
	}
	watch := func(x *tensor.Tensor) *autograd.Var {
		if x == nil {
			return nil
		}
		return tape.Watch(place(x))
	}
	vars := blockattnres.Inputs{PartialBlock: watch(in.PartialBlock), ProjWeight: watch(in.ProjWeight), RMSNormGamma: watch(in.RMSNormGamma)}
	for _, b := range in.Blocks {
		vars.Blocks = append(vars.Blocks, watch(b))
	}
	p := blockattnres.Decompose(vars, c.options()...)
	p.RMS.Keep()
	p.Alpha.Keep()
	g, err := tape.BackwardFrom(p.H, place(in.gradH))
	if err != nil {
		return chain{}, err
	}
	var blocks []*tensor.Tensor
	for _, b := range vars.Blocks {
		blocks = append(blocks, g.Of(b.Tensor()))
	}
	return c.gather(tape.Stream, p.H.Tensor(), p.RMS.Tensor(), p.Alpha.Tensor(), blocks, g.Of(vars.PartialBlock.Tensor()), g.Of(vars.ProjWeight.Tensor()), g.Of(vars.RMSNormGamma.Tensor()))
}
