package tests

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// The cascade: three chains from one set of inputs. Golden is Decomposed in
// float64, benchmark is Decomposed in the inputs' dtype, kernel is Forward, which
// writes the caches, then Backward, which consumes them. Every output and every
// gradient is compared, each by the thresholds of the dtype it is stored in.

type cascade struct {
	b, t, n, d int
	dtype      tensor.DType
	scale      float64
	gamma      bool // random and signed, else ones
	noPartial  bool
	noNorm     bool
}

func (c cascade) String() string {
	s := fmt.Sprintf("b%d_t%d_n%d_d%d_%v", c.b, c.t, c.n, c.d, c.dtype)
	if c.scale != 1 {
		s += fmt.Sprintf("_scale%v", c.scale)
	}
	if c.gamma {
		s += "_gamma"
	}
	if c.noPartial {
		s += "_nopartial"
	}
	if c.noNorm {
		s += "_nonorm"
	}
	return s
}

func TestCascade(t *testing.T) {
	var list []cascade
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		list = append(list,
			cascade{b: 2, t: 4096, n: 25, d: 512, dtype: d, scale: 1},
			cascade{b: 1, t: 1023, n: 32, d: 512, dtype: d, scale: 1},
			cascade{b: 1, t: 1024, n: 25, d: 512, dtype: d, scale: 1},
			cascade{b: 1, t: 1024, n: 25, d: 512, dtype: d, scale: -0.7, gamma: true},
			cascade{b: 1, t: 255, n: 7, d: 129, dtype: d, scale: 3, gamma: true, noPartial: true},
			cascade{b: 2, t: 129, n: 5, d: 65, dtype: d, scale: 1, noNorm: true})
	}
	for _, c := range list {
		if testing.Short() {
			c.t = min(c.t, 65)
		}
		t.Run(c.String(), func(t *testing.T) { c.run(t) })
	}
	if gib := peakMemory(); gib > 0 {
		t.Logf("peak memory of the process: %.1f GiB", gib)
		if gib >= 16 {
			t.Errorf("peak memory %.1f GiB, want less than 16", gib)
		}
	}
}

// peakMemory is the largest resident size of the process in GiB; 0 where the system does not tell.
func peakMemory() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			return kb / (1 << 20)
		}
	}
	return 0
}

// noise is a host tensor of normal numbers times a factor, made by index.
func noise(t *testing.T, d tensor.DType, seed, stream uint64, factor float64, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(d, shape...)
	if err != nil {
		t.Fatal(err)
	}
	src := random.Source{Seed: seed, Stream: stream}
	v := make([]float64, x.Len())
	for i := range v {
		v[i] = factor * src.Normal(uint64(i))
	}
	if err := x.SetFloat64s(v); err != nil {
		t.Fatal(err)
	}
	return x
}

// results are the outputs of one chain, in one order for all.
type results struct {
	names []string
	of    []*tensor.Tensor
}

func (r *results) add(name string, x *tensor.Tensor) {
	r.names = append(r.names, name)
	r.of = append(r.of, x)
}

func (c cascade) run(t *testing.T) {
	dev := cpu.New()
	defer func() {
		dev.Close()
		runtime.GC()
		debug.FreeOSMemory()
	}()
	shape := []int{c.b, c.t, c.d}
	var in blockattnres.Tensors
	for i := range c.n {
		in.Blocks = append(in.Blocks, noise(t, c.dtype, 42, uint64(i), 1, shape...))
	}
	if !c.noPartial {
		in.PartialBlock = noise(t, c.dtype, 42, 1000, 1, shape...)
	}
	gradH := noise(t, c.dtype, 42, 1001, 1, shape...)
	in.ProjWeight = noise(t, c.dtype, 42, 1002, 1/math.Sqrt(float64(4*c.d)), c.d)
	if !c.noNorm {
		if c.gamma {
			in.RMSNormGamma = noise(t, c.dtype, 42, 1003, 1, c.d)
		} else {
			in.RMSNormGamma = noise(t, c.dtype, 42, 1003, 0, c.d)
			ones := make([]float64, c.d)
			for i := range ones {
				ones[i] = 1
			}
			if err := in.RMSNormGamma.SetFloat64s(ones); err != nil {
				t.Fatal(err)
			}
		}
	}
	opts := []blockattnres.Option{blockattnres.Scale(c.scale)}
	if c.noNorm {
		opts = append(opts, blockattnres.WithoutRMSNorm())
	}

	kernel, free := c.kernel(t, dev, in, gradH, opts)
	defer free()
	benchmark := c.decomposed(t, dev, in, gradH, c.dtype, opts)
	golden := c.decomposed(t, dev, in, gradH, tensor.Float64, opts)
	var exact, all int
	for i, name := range golden.names {
		m := c.compare(t, name, kernel.of[i], benchmark.of[i], golden.of[i])
		exact, all = exact+m.exact, all+m.all
		kernel.of[i], benchmark.of[i], golden.of[i] = nil, nil, nil
	}
	t.Logf("16-bit outputs and gradients equal to the rounded golden: %.4f %% of %d", 100*float64(exact)/float64(all), all)
	if float64(exact) < 0.999*float64(all) {
		t.Errorf("only %d of %d 16-bit elements are the rounded golden", exact, all)
	}
	inUse, peak, _ := dev.Memory()
	t.Logf("device memory: peak %.2f GiB, still %.2f GiB", float64(peak)/(1<<30), float64(inUse)/(1<<30))
}

func (c cascade) kernel(t *testing.T, dev device.Device, in blockattnres.Tensors, gradH *tensor.Tensor, opts []blockattnres.Option) (r results, free func()) {
	s := device.NewStream(context.Background(), dev)
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: !c.noNorm, Alpha: true}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	g, err := blockattnres.Backward(s, gradH, in, out.Alpha, out.RMS, opts...)
	if err != nil {
		t.Fatal(err)
	}
	c.list(&r, out.H, out.RMS, out.Alpha, g.Blocks, g.PartialBlock, g.ProjWeight, g.RMSNormGamma)
	return r, s.Release
}

func (c cascade) list(r *results, h, rms, alpha *tensor.Tensor, blocks []*tensor.Tensor, partial, w, gamma *tensor.Tensor) {
	r.add("fwd_h", h)
	if !c.noNorm {
		r.add("fwd_rms_cache", rms)
	}
	r.add("fwd_alpha_cache", alpha)
	for i, b := range blocks {
		r.add(fmt.Sprintf("bwd_grad_block[%d]", i), b)
	}
	if !c.noPartial {
		r.add("bwd_grad_partial_block", partial)
	}
	r.add("bwd_grad_proj_weight", w)
	if !c.noNorm {
		r.add("bwd_grad_gamma", gamma)
	}
}

// decomposed runs the definition in dtype d and differentiates it. Results are on the host.
func (c cascade) decomposed(t *testing.T, dev device.Device, in blockattnres.Tensors, gradH *tensor.Tensor, d tensor.DType, opts []blockattnres.Option) (r results) {
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	as := func(x *tensor.Tensor) *tensor.Tensor {
		if x == nil || x.DType() == d {
			return x
		}
		return tape.Copy(d, x)
	}
	watch := func(x *tensor.Tensor) *autograd.Var {
		if x == nil {
			return nil
		}
		return tape.Watch(x)
	}
	vars := blockattnres.Inputs{PartialBlock: watch(as(in.PartialBlock)), ProjWeight: watch(as(in.ProjWeight)), RMSNormGamma: watch(as(in.RMSNormGamma))}
	for _, b := range in.Blocks {
		vars.Blocks = append(vars.Blocks, watch(as(b)))
	}
	p := blockattnres.Decompose(vars, opts...)
	p.RMS.Keep()
	p.Alpha.Keep()
	grads, err := tape.BackwardFrom(p.H, as(gradH))
	if err != nil {
		t.Fatal(err)
	}
	get := func(x *tensor.Tensor) *tensor.Tensor {
		if x == nil {
			return nil
		}
		host, err := tape.Download(x)
		if err != nil {
			t.Fatal(err)
		}
		return host
	}
	var blocks []*tensor.Tensor
	for _, b := range vars.Blocks {
		blocks = append(blocks, get(grads.Of(b.Tensor())))
	}
	of := func(v *autograd.Var) *tensor.Tensor { return get(grads.Of(v.Tensor())) }
	c.list(&r, get(p.H.Tensor()), get(p.RMS.Tensor()), get(p.Alpha.Tensor()), blocks, of(vars.PartialBlock), of(vars.ProjWeight), of(vars.RMSNormGamma))
	return r
}

// threshold is the size below which an element counts as small, and the error
// that a small element may have.
func threshold(d tensor.DType) (small, allowed float64) {
	switch d {
	case tensor.Float16:
		return 0x1p-11, 0x1p-16
	case tensor.BFloat16:
		return 0x1p-8, 0x1p-16
	}
	return 0x1p-14, 0x1p-30
}

type measures struct{ exact, all int }

// errorsOf are the metrics of one chain against golden.
type errorsOf struct {
	mare, mere, rmse float64
	large, small     int // elements; small ones beyond the allowed error
	notFinite        int // where golden is finite
}

func measure(got, golden []float64, d tensor.DType) (e errorsOf) {
	small, allowed := threshold(d)
	for i, g := range golden {
		diff := math.Abs(got[i] - g)
		switch {
		case math.IsNaN(got[i]) || math.IsInf(got[i], 0):
			e.notFinite++
		case math.Abs(g) < small:
			if diff > allowed {
				e.small++
			}
		default:
			e.large++
			re := diff / (math.Abs(g) + 1e-7)
			e.mare = math.Max(e.mare, re)
			e.mere += re
			e.rmse += diff * diff
		}
	}
	if e.large > 0 {
		e.mere /= float64(e.large)
		e.rmse = math.Sqrt(e.rmse / float64(e.large))
	}
	return e
}

func (c cascade) compare(t *testing.T, name string, kernel, benchmark, golden *tensor.Tensor) (m measures) {
	t.Helper()
	d := kernel.DType()
	k, err := kernel.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	b, err := benchmark.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	g, err := golden.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	if len(k) != len(g) || len(b) != len(g) {
		t.Fatalf("%s: %d elements, benchmark %d, golden %d", name, len(k), len(b), len(g))
	}
	for i, x := range g {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			t.Fatalf("%s: golden[%d] is %v", name, i, x)
		}
	}
	ek, eb := measure(k, g, d), measure(b, g, d)
	small, _ := threshold(d)
	ratio := func(a, b float64) float64 { return a / math.Max(b, small) }
	mare, mere, rmse := ratio(ek.mare, eb.mare), ratio(ek.mere, eb.mere), ratio(ek.rmse, eb.rmse)
	count := float64(ek.small) / math.Max(float64(eb.small), 1)
	verdict := "PASS"
	if !(mare <= 2 && mere <= 1.2 && rmse <= 1.2 && count <= 2) || ek.notFinite > 0 {
		verdict = "FAILED"
		t.Errorf("%s: kernel %+v, benchmark %+v", name, ek, eb)
	}
	t.Logf("%-24s MARE %.4f MERE %.4f RMSE %.4f small %.4f %s", name, mare, mere, rmse, count, verdict)
	if !d.IsHalf() {
		limit := 4e-6 // alpha: absolute
		for i, x := range g {
			diff := math.Abs(k[i] - x)
			if name == "fwd_rms_cache" {
				diff, limit = diff/x, 2e-7
			}
			if !(diff <= limit) {
				t.Fatalf("%s: element %d is %v, golden %v", name, i, k[i], x)
			}
		}
		return m
	}
	// Our own bar: one ulp of the rounded golden, beside float32's error of the terms it is a sum of.
	scale := largest(g)
	for i, x := range g {
		w := tensor.Round(d, x)
		m.all++
		if k[i] == w {
			m.exact++
		} else if !(math.Abs(k[i]-w) <= ulp(d, w)+1e-6*scale) {
			t.Fatalf("%s: element %d is %v, golden %v", name, i, k[i], x)
		}
	}
	return m
}
