package blockattnres_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// outcome is every output and gradient of Forward and Backward, by the
// document's names, as float64 and as bits.
type outcome struct {
	of   map[string][]float64
	bits map[string][]uint64
}

func runBoth(t *testing.T, dev *cpu.Device, in blockattnres.Tensors, gradH *tensor.Tensor, opts ...blockattnres.Option) outcome {
	t.Helper()
	norm := in.RMSNormGamma != nil
	if !norm {
		opts = append(opts, blockattnres.WithoutRMSNorm())
	}
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: norm, Alpha: true}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	g, err := blockattnres.Backward(s, gradH, in, out.Alpha, out.RMS, opts...)
	if err != nil {
		t.Fatal(err)
	}
	o := outcome{map[string][]float64{}, map[string][]uint64{}}
	add := func(name string, x *tensor.Tensor) {
		if x == nil {
			return
		}
		if o.of[name], err = x.Float64s(); err != nil {
			t.Fatal(err)
		}
		if o.bits[name], err = x.Bits(); err != nil {
			t.Fatal(err)
		}
	}
	add("output", out.H)
	add("rms_cache", out.RMS)
	add("alpha_cache", out.Alpha)
	for i, b := range g.Blocks {
		add(fmt.Sprintf("grad_blocks[%d]", i), b)
	}
	add("grad_partial_block", g.PartialBlock)
	add("grad_proj_weight", g.ProjWeight)
	add("grad_rmsnorm_gamma", g.RMSNormGamma)
	return o
}

func sameBits(t *testing.T, what string, got, want outcome) {
	t.Helper()
	if len(got.bits) != len(want.bits) {
		t.Fatalf("%s: %d results, want %d", what, len(got.bits), len(want.bits))
	}
	for name, w := range want.bits {
		g := got.bits[name]
		for i := range w {
			if g[i] != w[i] {
				t.Fatalf("%s: %s element %d is %v, want %v", what, name, i, got.of[name][i], want.of[name][i])
			}
		}
	}
}

var everyDType = []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16}

// strided is x in another layout, element by element the same.
func strided(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	v, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	sh := x.Shape()
	big, err := tensor.Zeros(x.DType(), sh[2]+1, sh[0], sh[1]+2)
	if err != nil {
		t.Fatal(err)
	}
	y, err := big.Permute(1, 2, 0)
	if err == nil {
		if y, err = y.Slice(1, 1, 1+sh[1]); err == nil {
			y, err = y.Slice(2, 1, 1+sh[2])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := y.SetFloat64s(v); err != nil {
		t.Fatal(err)
	}
	return y
}

// Threads and strides change no bit; nor does the place of a token.
func TestBitsDoNotDepend(t *testing.T) {
	for _, d := range everyDType {
		for _, width := range []int{1, 2, 7, 8, 33, 64, 129} {
			const b, steps, n = 2, 37, 4
			in := operands(t, d, n, b, steps, width)
			g := noise(t, d, 300, b, steps, width)
			opts := []blockattnres.Option{blockattnres.Scale(-0.7)}
			one := cpu.New(cpu.Threads(1))
			want := runBoth(t, one, in, g, opts...)
			for _, threads := range []int{2, 3, 7} {
				dev := cpu.New(cpu.Threads(threads))
				sameBits(t, fmt.Sprintf("%v D=%d, %d threads", d, width, threads), runBoth(t, dev, in, g, opts...), want)
				dev.Close()
			}
			views := in
			views.Blocks = nil
			for _, x := range in.Blocks {
				views.Blocks = append(views.Blocks, strided(t, x))
			}
			views.PartialBlock = strided(t, in.PartialBlock)
			sameBits(t, fmt.Sprintf("%v D=%d, views", d, width), runBoth(t, one, views, strided(t, g), opts...), want)

			// One token alone.
			take := func(x *tensor.Tensor) *tensor.Tensor {
				y, err := x.Slice(0, 1, 2)
				if err == nil {
					y, err = y.Slice(1, 20, 21)
				}
				if err != nil {
					t.Fatal(err)
				}
				return y
			}
			alone := in
			alone.Blocks = nil
			for _, x := range in.Blocks {
				alone.Blocks = append(alone.Blocks, take(x))
			}
			alone.PartialBlock = take(in.PartialBlock)
			got := runBoth(t, one, alone, take(g), opts...)
			at := (steps + 20) // token (1,20)
			for name, w := range want.bits {
				if name == "grad_proj_weight" || name == "grad_rmsnorm_gamma" {
					continue
				}
				per := len(w) / (b * steps)
				for i := range per {
					if got.bits[name][i] != w[at*per+i] {
						t.Fatalf("%v D=%d: %s of a token depends on the others", d, width, name)
					}
				}
			}
			one.Close()
		}
	}
}

// A NaN or an infinity stays in its token.
func TestIsolation(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for _, d := range everyDType {
		const steps, width, bad = 9, 17, 4
		in := operands(t, d, 3, 1, steps, width)
		g := noise(t, d, 300, 1, steps, width)
		clean := runBoth(t, dev, in, g)
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			v, err := in.Blocks[1].Float64s()
			if err != nil {
				t.Fatal(err)
			}
			v[bad*width+3] = x
			dirty := in
			dirty.Blocks = append([]*tensor.Tensor{}, in.Blocks...)
			if dirty.Blocks[1], err = tensor.FromFloat64s(d, v, 1, steps, width); err != nil {
				t.Fatal(err)
			}
			got := runBoth(t, dev, dirty, g)
			for name, w := range clean.bits {
				if name == "grad_proj_weight" || name == "grad_rmsnorm_gamma" {
					if got.of[name][0] == got.of[name][0] {
						t.Errorf("%v: %s does not see %v", d, name, x)
					}
					continue
				}
				per := len(w) / steps
				for i := range w {
					if i/per != bad && got.bits[name][i] != w[i] {
						t.Fatalf("%v: %v in token %d changed %s of token %d", d, x, bad, name, i/per)
					}
				}
			}
		}
	}
}

// Rows of any size: multiplying all rows by a power of two multiplies h by it,
// leaves alpha alone, and divides the gradient through the norm by it.
func TestRowsOfAnySize(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for d, exponents := range map[tensor.DType][]int{
		tensor.Float64: {-1000, -700, -520, 520, 700, 1000}, tensor.Float32: {-100, -70, 70, 120}, tensor.BFloat16: {-100, -70, 70, 120}, tensor.Float16: {8},
	} {
		in := operands(t, d, 3, 1, 3, 13)
		g := noise(t, d, 300, 1, 3, 13)
		want := runBoth(t, dev, in, g, blockattnres.Eps(0))
		for _, e := range exponents {
			scaled := in
			scaled.Blocks = nil
			grow := func(x *tensor.Tensor) *tensor.Tensor {
				v, err := x.Float64s()
				if err != nil {
					t.Fatal(err)
				}
				for i := range v {
					v[i] = math.Ldexp(v[i], e)
				}
				y, err := tensor.FromFloat64s(d, v, x.Shape()...)
				if err != nil {
					t.Fatal(err)
				}
				return y
			}
			for _, x := range in.Blocks {
				scaled.Blocks = append(scaled.Blocks, grow(x))
			}
			scaled.PartialBlock = grow(in.PartialBlock)
			got := runBoth(t, dev, scaled, g, blockattnres.Eps(0))
			near := func(name string, factor int, tol float64) {
				t.Helper()
				for i, w := range want.of[name] {
					w = math.Ldexp(w, factor)
					if x := got.of[name][i]; !(math.Abs(x-w) <= tol*math.Max(math.Abs(w), math.Ldexp(1, factor))) {
						t.Fatalf("%v, rows times 2^%d: %s element %d is %v, want %v", d, e, name, i, x, w)
					}
				}
			}
			unit := map[tensor.DType]float64{tensor.Float64: 1e-13, tensor.Float32: 1e-6, tensor.BFloat16: 0.01, tensor.Float16: 0.002}[d]
			near("output", e, unit)
			near("rms_cache", e, 1e-6)
			near("alpha_cache", 0, 1e-6)
			// dw and dgamma sum ds v/rms, and ds grows with the rows.
			near("grad_proj_weight", e, unit)
			near("grad_rmsnorm_gamma", e, unit)
			// Both parts of dv keep their size: alpha g, and ds/rms.
			near("grad_blocks[1]", 0, unit)
		}
	}
}

// Exact cases, and large logits.
func TestExactCases(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	for _, d := range everyDType {
		g := noise(t, d, 300, 1, 4, 9)
		one := operands(t, d, 1, 1, 4, 9)
		one.PartialBlock = nil
		got := runBoth(t, dev, one, g)
		x, _ := one.Blocks[0].Bits()
		gb, _ := g.Bits()
		for i := range x {
			if got.bits["output"][i] != x[i] || got.bits["grad_blocks[0]"][i] != gb[i] {
				t.Fatalf("%v: one source is not the identity", d)
			}
		}
		for _, name := range []string{"grad_proj_weight", "grad_rmsnorm_gamma"} {
			for _, x := range got.of[name] {
				if x != 0 {
					t.Fatalf("%v: one source: %s has %v", d, name, x)
				}
			}
		}
		// Scale 0: uniform weights, and weight gradients of zero.
		got = runBoth(t, dev, operands(t, d, 3, 1, 4, 9), g, blockattnres.Scale(0))
		for _, a := range got.of["alpha_cache"] {
			if a != 0.25 {
				t.Fatalf("%v: scale 0 gives a weight of %v", d, a)
			}
		}
		for _, x := range append(got.of["grad_proj_weight"], got.of["grad_rmsnorm_gamma"]...) {
			if x != 0 {
				t.Fatalf("%v: scale 0 gives a weight gradient of %v", d, x)
			}
		}
		// Logits of thousands: one source takes all, nothing overflows.
		got = runBoth(t, dev, operands(t, d, 3, 1, 4, 9), g, blockattnres.Scale(1e4))
		for name, list := range got.of {
			for _, x := range list {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Fatalf("%v: large logits: %s has %v", d, name, x)
				}
			}
		}
	}
}

// sum(alpha) = 1 and w.dw = gamma.dgamma.
func TestIdentities(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	in := operands(t, tensor.Float64, 5, 2, 3, 17)
	got := runBoth(t, dev, in, noise(t, tensor.Float64, 300, 2, 3, 17), blockattnres.Scale(-0.7))
	for i := 0; i < len(got.of["alpha_cache"]); i += 6 {
		var sum float64
		for _, a := range got.of["alpha_cache"][i : i+6] {
			sum += a
		}
		if math.Abs(sum-1) > 1e-15*6 {
			t.Errorf("weights add up to %v", sum)
		}
	}
	w, _ := in.ProjWeight.Float64s()
	gamma, _ := in.RMSNormGamma.Float64s()
	var a, b float64
	for i := range w {
		a += w[i] * got.of["grad_proj_weight"][i]
		b += gamma[i] * got.of["grad_rmsnorm_gamma"][i]
	}
	if math.Abs(a-b) > 1e-12*math.Max(1, math.Abs(a)) {
		t.Errorf("w.dw is %v, gamma.dgamma %v", a, b)
	}
}

// Memory beyond inputs, outputs and caches does not grow with B, T or L.
func TestMemory(t *testing.T) {
	extra := func(b, steps, n int) int {
		dev := cpu.New(cpu.Threads(2))
		defer dev.Close()
		in := operands(t, tensor.BFloat16, n, b, steps, 64)
		runBoth(t, dev, in, noise(t, tensor.BFloat16, 300, b, steps, 64))
		_, peak, _ := dev.Memory()
		l, tokens := n+1, b*steps
		results := 2*tokens*64*(1+l) + 4*tokens*l*2 + 2*2*64
		return peak - results - peak/4 // sizes are rounded up by at most a quarter
	}
	const partials = 64 * 64 * 8
	for _, c := range [][3]int{{1, 64, 3}, {2, 512, 3}, {1, 128, 40}} {
		if got := extra(c[0], c[1], c[2]); got > 2*partials {
			t.Errorf("%v: %d bytes beside the results, want at most %d", c, got, 2*partials)
		}
	}
}

// Random rows, with the definition in float64 as the judge.
func TestRandom(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	runs := 60
	if testing.Short() {
		runs = 15
	}
	src := random.Source{Seed: 99}
	for run := range runs {
		k := uint64(run * 8)
		d := everyDType[src.Intn(k, 4)]
		n, width := 1+src.Intn(k+1, 12), 1+src.Intn(k+2, 129)
		if run%10 == 9 {
			n = 127
		}
		in := operands(t, d, n, 1, 1+src.Intn(k+3, 5), width)
		if src.Intn(k+4, 2) == 0 {
			in.PartialBlock = nil
		}
		scale := []float64{1, -0.7, 3, 0}[src.Intn(k+5, 4)]
		seed := noise(t, d, 300, in.Blocks[0].Shape()...)
		p := paths()
		fused := gradients(t, p[0], in, seed, blockattnres.Scale(scale))
		want := gradients(t, p[1], in, seed, blockattnres.Scale(scale))
		unit := map[tensor.DType]float64{tensor.Float32: 0x1p-23, tensor.Float64: 1e-13, tensor.BFloat16: 0x1p-7, tensor.Float16: 0x1p-10}[d]
		for i := range want {
			top := 0.0
			for _, x := range want[i] {
				top = math.Max(top, math.Abs(x))
			}
			for j, w := range want[i] {
				if diff := math.Abs(fused[i][j] - w); !(diff <= unit*math.Abs(w)+2e-6*top+1e-7) || d == tensor.Float64 && diff > 1e-12*math.Max(1, top) {
					t.Fatalf("run %d, %v, N=%d D=%d scale %v: result %d element %d is %v, want %v", run, d, n, width, scale, i, j, fused[i][j], w)
				}
			}
		}
	}
}

// What is written moves its version on, so that a saved tensor's change is seen.
func TestVersions(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	in := operands(t, tensor.Float32, 2, 1, 3, 5)
	args := &device.BlockAttnResArgs{Blocks: in.Blocks, PartialBlock: in.PartialBlock, ProjWeight: in.ProjWeight, RMSNormGamma: in.RMSNormGamma, Scale: 1, Eps: 1e-6, RMSNorm: true}
	zeros := func(shape ...int) *tensor.Tensor { return noise(t, tensor.Float32, 400, shape...) }
	out := &blockattnres.Outputs{H: zeros(1, 3, 5), RMS: zeros(1, 3, 3, 1), Alpha: zeros(1, 3, 3)}
	grads := &blockattnres.Grads{Blocks: []*tensor.Tensor{zeros(1, 3, 5), nil}, PartialBlock: zeros(1, 3, 5), ProjWeight: zeros(5), RMSNormGamma: zeros(5)}
	check := func(what string, run func() error, written ...*tensor.Tensor) {
		t.Helper()
		var before []uint64
		for _, x := range written {
			before = append(before, x.Memory().Version())
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		for i, x := range written {
			if x.Memory().Version() <= before[i] {
				t.Errorf("%s: result %d has its old version", what, i)
			}
		}
	}
	check("forward", func() error { return dev.BlockAttnResForward(context.Background(), args, out) }, out.H, out.RMS, out.Alpha)
	check("backward", func() error {
		return dev.BlockAttnResBackward(context.Background(), args, out, zeros(1, 3, 5), grads)
	},
		grads.Blocks[0], grads.PartialBlock, grads.ProjWeight, grads.RMSNormGamma)
}
