package blockattnres_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

func noise(t testing.TB, d tensor.DType, stream uint64, shape ...int) *tensor.Tensor {
	t.Helper()
	x := make([]float64, tensor.Shape(shape).Len())
	for i := range x {
		x[i] = random.Source{Seed: 5, Stream: stream}.Normal(uint64(i))
	}
	v, err := tensor.FromFloat64s(d, x, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// operands are N blocks, a partial block, a weight and a gain.
func operands(t testing.TB, d tensor.DType, n int, shape ...int) blockattnres.Tensors {
	var in blockattnres.Tensors
	for i := range n {
		in.Blocks = append(in.Blocks, noise(t, d, uint64(i), shape...))
	}
	in.PartialBlock = noise(t, d, 200, shape...)
	in.ProjWeight = noise(t, d, 201, shape[2])
	in.RMSNormGamma = noise(t, d, 202, shape[2])
	return in
}

func list(in blockattnres.Tensors) []*tensor.Tensor {
	all := append([]*tensor.Tensor{}, in.Blocks...)
	for _, x := range []*tensor.Tensor{in.ProjWeight, in.RMSNormGamma, in.PartialBlock} {
		if x != nil {
			all = append(all, x)
		}
	}
	return all
}

// inputs is the inverse of list.
func inputs(v []*autograd.Var, n int, gamma, partial bool) blockattnres.Inputs {
	in := blockattnres.Inputs{Blocks: v[:n], ProjWeight: v[n]}
	v = v[n+1:]
	if gamma {
		in.RMSNormGamma, v = v[0], v[1:]
	}
	if partial {
		in.PartialBlock = v[0]
	}
	return in
}

type plain struct{ device.Device }

type path struct {
	name string
	dev  device.Device
	f    func(blockattnres.Inputs, ...blockattnres.Option) *autograd.Var
}

func paths() []path {
	dev := cpu.New()
	return []path{{"fused", dev, blockattnres.Apply}, {"fallback", plain{dev}, blockattnres.Apply}, {"decomposed", dev, blockattnres.Decomposed}}
}

func TestGradients(t *testing.T) {
	for _, p := range paths() {
		for _, c := range []struct {
			n, d            int
			scale           float64
			partial, noNorm bool
		}{{1, 3, 1, false, false}, {3, 5, -0.7, true, false}, {2, 4, 3, true, true}, {2, 7, 0, false, false}} {
			t.Run(fmt.Sprintf("%s_%+v", p.name, c), func(t *testing.T) {
				in := operands(t, tensor.Float64, c.n, 2, 3, c.d)
				opts := []blockattnres.Option{blockattnres.Scale(c.scale), blockattnres.Eps(1e-3)}
				if c.noNorm {
					in.RMSNormGamma = nil
					opts = append(opts, blockattnres.WithoutRMSNorm())
				}
				if !c.partial {
					in.PartialBlock = nil
				}
				gradcheck.Test(t, p.dev, func(tape *autograd.Tape, v []*autograd.Var) *autograd.Var {
					return p.f(inputs(v, c.n, !c.noNorm, c.partial), opts...)
				}, list(in), gradcheck.Options{Tolerance: 1e-9, Order: 4})
			})
		}
	}
}

// gradients runs a path and downloads h and the gradient of each operand.
func gradients(t *testing.T, p path, in blockattnres.Tensors, seed *tensor.Tensor, opts ...blockattnres.Option) [][]float64 {
	t.Helper()
	tape := autograd.NewTape(context.Background(), p.dev)
	defer tape.Release()
	var v []*autograd.Var
	for _, x := range list(in) {
		v = append(v, tape.Watch(x))
	}
	h := p.f(inputs(v, len(in.Blocks), in.RMSNormGamma != nil, in.PartialBlock != nil), opts...)
	y, err := h.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	out := [][]float64{y}
	g, err := tape.BackwardFrom(h, seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range v {
		host, err := tape.Download(g.Of(x.Tensor()))
		if err != nil {
			t.Fatal(err)
		}
		f, err := host.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// The fused path and the fallback give the same numbers in every dtype.
func TestPathsAgree(t *testing.T) {
	ps := paths()
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16} {
		in := operands(t, d, 5, 2, 7, 33)
		seed := noise(t, d, 300, 2, 7, 33)
		fused := gradients(t, ps[0], in, seed, blockattnres.Scale(-0.7))
		other := gradients(t, ps[1], in, seed, blockattnres.Scale(-0.7))
		tol := map[tensor.DType]float64{tensor.Float32: 1e-5, tensor.Float64: 1e-12, tensor.BFloat16: 1.0 / 128, tensor.Float16: 1.0 / 1024}[d]
		for i := range fused {
			for j, x := range fused[i] {
				if diff := math.Abs(x - other[i][j]); diff > tol*math.Max(1, math.Abs(x)) {
					t.Fatalf("%v: result %d element %d: fused %v, fallback %v", d, i, j, x, other[i][j])
				}
			}
		}
	}
}

// One tensor given as two sources gets the sum of both gradients.
func TestSameTensorTwice(t *testing.T) {
	for _, p := range paths() {
		in := operands(t, tensor.Float64, 3, 1, 2, 5)
		in.Blocks[2] = in.Blocks[0]
		gradcheck.Test(t, p.dev, func(tape *autograd.Tape, v []*autograd.Var) *autograd.Var {
			return p.f(blockattnres.Inputs{Blocks: []*autograd.Var{v[0], v[1], v[0]}, PartialBlock: v[0], ProjWeight: v[2], RMSNormGamma: v[3]})
		}, []*tensor.Tensor{in.Blocks[0], in.Blocks[1], in.ProjWeight, in.RMSNormGamma}, gradcheck.Options{Tolerance: 1e-9, Order: 4})
	}
}

// Weights may be (1,D), and their gradients are too.
func TestWeightRow(t *testing.T) {
	for _, p := range paths() {
		in := operands(t, tensor.Float64, 2, 1, 2, 4)
		var err error
		for _, w := range []**tensor.Tensor{&in.ProjWeight, &in.RMSNormGamma} {
			if *w, err = (*w).Reshape(1, 4); err != nil {
				t.Fatal(err)
			}
		}
		gradcheck.Test(t, p.dev, func(tape *autograd.Tape, v []*autograd.Var) *autograd.Var {
			return p.f(inputs(v, 2, true, true))
		}, list(in), gradcheck.Options{Tolerance: 1e-9, Order: 4})
	}
}

// With frozen blocks only the weights get gradients.
func TestFrozen(t *testing.T) {
	for _, p := range paths() {
		in := operands(t, tensor.Float64, 2, 1, 2, 4)
		gradcheck.Test(t, p.dev, func(tape *autograd.Tape, v []*autograd.Var) *autograd.Var {
			return p.f(blockattnres.Inputs{Blocks: []*autograd.Var{tape.Const(in.Blocks[0]), tape.Const(in.Blocks[1])}, ProjWeight: v[0], RMSNormGamma: tape.Const(in.RMSNormGamma)})
		}, []*tensor.Tensor{in.ProjWeight}, gradcheck.Options{Tolerance: 1e-9, Order: 4})
	}
}

// Caches are made only if something wants a gradient.
func TestNoCachesWithoutGradient(t *testing.T) {
	dev := cpu.New()
	in := operands(t, tensor.Float32, 2, 1, 64, 2)
	used := func(watch bool) int {
		before, _, _ := dev.Memory()
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		place := tape.Const
		if watch {
			place = tape.Watch
		}
		var v []*autograd.Var
		for _, x := range list(in) {
			v = append(v, place(x))
		}
		if err := blockattnres.Apply(inputs(v, 2, true, true)).Err(); err != nil {
			t.Fatal(err)
		}
		after, _, _ := dev.Memory()
		return after - before
	}
	if without, with := used(false), used(true); without >= with {
		t.Errorf("%d bytes without a gradient, %d with one", without, with)
	}
}

func TestEmpty(t *testing.T) {
	for _, shape := range [][]int{{0, 3, 4}, {2, 0, 4}} {
		for _, p := range paths()[:1] {
			in := operands(t, tensor.BFloat16, 2, shape...)
			g := gradients(t, p, in, noise(t, tensor.BFloat16, 1, shape...))
			for _, w := range g[3:5] { // the weights
				for _, x := range w {
					if x != 0 {
						t.Errorf("%v: a weight gradient of %v", shape, x)
					}
				}
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	dev := cpu.New()
	good := func() blockattnres.Tensors { return operands(t, tensor.Float32, 3, 1, 2, 4) }
	for _, c := range []struct {
		name   string
		change func(in *blockattnres.Tensors) []blockattnres.Option
		kind   error
		words  string
	}{
		{"no blocks", func(in *blockattnres.Tensors) []blockattnres.Option { in.Blocks = nil; return nil }, tensor.ErrCount, "blocks"},
		{"128 blocks", func(in *blockattnres.Tensors) []blockattnres.Option {
			for len(in.Blocks) < 128 {
				in.Blocks = append(in.Blocks, in.Blocks[0])
			}
			return nil
		}, tensor.ErrCount, "128"},
		{"nil block", func(in *blockattnres.Tensors) []blockattnres.Option { in.Blocks[1] = nil; return nil }, tensor.ErrMissing, "blocks[1]"},
		{"rank", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.Blocks[0] = noise(t, tensor.Float32, 1, 2, 4)
			return nil
		}, tensor.ErrRank, "blocks[0]"},
		{"shape", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.Blocks[2] = noise(t, tensor.Float32, 1, 1, 3, 4)
			return nil
		}, tensor.ErrShape, "blocks[2] is (1,3,4)"},
		{"dtype", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.Blocks[2] = noise(t, tensor.Float64, 1, 1, 2, 4)
			return nil
		}, tensor.ErrDType, "blocks[2]"},
		{"partial shape", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.PartialBlock = noise(t, tensor.Float32, 1, 1, 3, 4)
			return nil
		}, tensor.ErrShape, "partial_block"},
		{"partial dtype", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.PartialBlock = noise(t, tensor.BFloat16, 1, 1, 2, 4)
			return nil
		}, tensor.ErrDType, "partial_block"},
		{"weight missing", func(in *blockattnres.Tensors) []blockattnres.Option { in.ProjWeight = nil; return nil }, tensor.ErrMissing, "proj_weight"},
		{"two rows of weights", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.ProjWeight = noise(t, tensor.Float32, 1, 2, 4)
			return nil
		}, tensor.ErrShape, "proj_weight"},
		{"weight shape", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.ProjWeight = noise(t, tensor.Float32, 1, 5)
			return nil
		}, tensor.ErrShape, "proj_weight"},
		{"gamma missing", func(in *blockattnres.Tensors) []blockattnres.Option { in.RMSNormGamma = nil; return nil }, tensor.ErrMissing, "rmsnorm_gamma"},
		{"gamma shape although off", func(in *blockattnres.Tensors) []blockattnres.Option {
			in.RMSNormGamma = noise(t, tensor.Float32, 1, 5)
			return []blockattnres.Option{blockattnres.WithoutRMSNorm()}
		}, tensor.ErrShape, "rmsnorm_gamma"},
		{"eps", func(in *blockattnres.Tensors) []blockattnres.Option {
			return []blockattnres.Option{blockattnres.Eps(-1)}
		}, tensor.ErrValue, "rmsnorm_eps"},
		{"eps NaN", func(in *blockattnres.Tensors) []blockattnres.Option {
			return []blockattnres.Option{blockattnres.Eps(math.NaN())}
		}, tensor.ErrValue, "rmsnorm_eps"},
		{"eps Inf", func(in *blockattnres.Tensors) []blockattnres.Option {
			return []blockattnres.Option{blockattnres.Eps(math.Inf(1))}
		}, tensor.ErrValue, "rmsnorm_eps"},
		{"scale", func(in *blockattnres.Tensors) []blockattnres.Option {
			return []blockattnres.Option{blockattnres.Scale(math.NaN())}
		}, tensor.ErrValue, "scale"},
		{"no width", func(in *blockattnres.Tensors) []blockattnres.Option {
			*in = operands(t, tensor.Float32, 1, 1, 2, 0)
			return nil
		}, tensor.ErrShape, "blocks[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			opts := c.change(&in)
			s := device.NewStream(context.Background(), dev)
			defer s.Release()
			check := func(where string, err error) {
				t.Helper()
				var arg *tensor.ArgError
				if !errors.Is(err, c.kind) || !errors.As(err, &arg) || !strings.Contains(err.Error(), c.words) {
					t.Errorf("%s: %v, want %v with %q", where, err, c.kind, c.words)
				}
			}
			_, err := blockattnres.Forward(s, in, blockattnres.Caches{}, opts...)
			check("Forward", err)
			if s.Err() != nil {
				t.Errorf("the stream failed: %v", s.Err())
			}
			for _, p := range paths() {
				tape := autograd.NewTape(context.Background(), p.dev)
				defer tape.Release()
				var v blockattnres.Inputs
				watch := func(x *tensor.Tensor) *autograd.Var {
					if x == nil {
						return nil
					}
					return tape.Watch(x)
				}
				for _, b := range in.Blocks {
					v.Blocks = append(v.Blocks, watch(b))
				}
				v.PartialBlock, v.ProjWeight, v.RMSNormGamma = watch(in.PartialBlock), watch(in.ProjWeight), watch(in.RMSNormGamma)
				check(p.name, p.f(v, opts...).Err())
				if !strings.Contains(tape.Err().Error(), "op_test.go:") {
					t.Errorf("no place in %v", tape.Err())
				}
			}
		})
	}
}

func TestCacheRefusals(t *testing.T) {
	dev := cpu.New()
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	in := operands(t, tensor.Float32, 2, 1, 2, 4)
	off := blockattnres.WithoutRMSNorm()
	if _, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: true}, off); !errors.Is(err, tensor.ErrValue) {
		t.Errorf("an rms cache without RMSNorm: %v", err)
	}
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: true, Alpha: true})
	if err != nil {
		t.Fatal(err)
	}
	g := noise(t, tensor.Float32, 1, 1, 2, 4)
	without := in
	without.PartialBlock = nil
	half := in
	half.RMSNormGamma = nil
	for name, c := range map[string]struct {
		g, alpha, rms *tensor.Tensor
		in            blockattnres.Tensors
		kind          error
		words         string
	}{
		"grad_h shape":       {noise(t, tensor.Float32, 1, 1, 2, 5), out.Alpha, out.RMS, in, tensor.ErrShape, "grad_h"},
		"grad_h dtype":       {noise(t, tensor.Float64, 1, 1, 2, 4), out.Alpha, out.RMS, in, tensor.ErrDType, "grad_h"},
		"grad_h missing":     {nil, out.Alpha, out.RMS, in, tensor.ErrMissing, "grad_h"},
		"alpha missing":      {g, nil, out.RMS, in, tensor.ErrMissing, "alpha_cache"},
		"alpha dtype":        {g, noise(t, tensor.BFloat16, 1, 1, 2, 3), out.RMS, in, tensor.ErrDType, "alpha_cache"},
		"alpha float64":      {g, noise(t, tensor.Float64, 1, 1, 2, 3), out.RMS, in, tensor.ErrDType, "alpha_cache"},
		"partial in one":     {g, out.Alpha, out.RMS, without, tensor.ErrShape, "alpha_cache"},
		"rms dtype":          {g, out.Alpha, noise(t, tensor.BFloat16, 1, 1, 2, 3, 1), in, tensor.ErrDType, "rms_cache"},
		"rms float64":        {g, out.Alpha, noise(t, tensor.Float64, 1, 1, 2, 3, 1), in, tensor.ErrDType, "rms_cache"},
		"rms missing":        {g, out.Alpha, nil, in, tensor.ErrMissing, "rms_cache"},
		"rms shape":          {g, out.Alpha, out.Alpha, in, tensor.ErrShape, "rms_cache"},
		"gamma missing here": {g, out.Alpha, out.RMS, half, tensor.ErrMissing, "rmsnorm_gamma"},
	} {
		_, err := blockattnres.Backward(s, c.g, c.in, c.alpha, c.rms)
		if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.kind, c.words)
		}
	}
	if _, err := blockattnres.Backward(s, g, in, out.Alpha, out.RMS); err != nil {
		t.Errorf("a right call after the wrong ones: %v", err)
	}
	bare := device.NewStream(context.Background(), plain{dev})
	defer bare.Release()
	if _, err := blockattnres.Forward(bare, in, blockattnres.Caches{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device without the kernel: %v", err)
	}
}

// Decomposed casts nothing: its values have the operands' dtype.
func TestDecomposedDType(t *testing.T) {
	tape := autograd.NewTape(context.Background(), cpu.New())
	defer tape.Release()
	var v []*autograd.Var
	for _, x := range list(operands(t, tensor.Float16, 2, 1, 2, 4)) {
		v = append(v, tape.Watch(x))
	}
	p := blockattnres.Decompose(inputs(v, 2, true, true))
	for _, x := range []*autograd.Var{p.H, p.RMS, p.Alpha} {
		if x.DType() != tensor.Float16 {
			t.Errorf("%v", x)
		}
	}
	if err := ops.Sum(p.H, ops.All()).Err(); err != nil {
		t.Error(err)
	}
}

// The definition in float64 is right for rows of any size, as the golden of a
// precision test must be.
func TestDecomposedOfAnySize(t *testing.T) {
	p := paths()[2]
	in := operands(t, tensor.Float64, 3, 2, 2, 7)
	seed := noise(t, tensor.Float64, 55, 2, 2, 7)
	want := gradients(t, p, in, seed, blockattnres.Eps(0))
	for _, exp := range []int{-1000, -664, 664, 1000} {
		scaled := in
		grow := func(x *tensor.Tensor) *tensor.Tensor {
			v, err := x.Float64s()
			if err != nil {
				t.Fatal(err)
			}
			for i := range v {
				v[i] = math.Ldexp(v[i], exp)
			}
			y, err := tensor.FromFloat64s(tensor.Float64, v, x.Shape()...)
			if err != nil {
				t.Fatal(err)
			}
			return y
		}
		scaled.Blocks = nil
		for _, x := range in.Blocks {
			scaled.Blocks = append(scaled.Blocks, grow(x))
		}
		scaled.PartialBlock = grow(in.PartialBlock)
		got := gradients(t, p, scaled, seed, blockattnres.Eps(0))
		for i := range want { // h, then the gradients in the order of list
			e := 0
			if n := len(scaled.Blocks); i == 0 || i == n+1 || i == n+2 { // h, and those of the weights
				e = exp
			}
			for j, w := range want[i] {
				if x := math.Ldexp(got[i][j], -e); math.Abs(x-w) > 1e-12*math.Max(1, math.Abs(w)) {
					t.Fatalf("rows times 2^%d: result %d element %d is %v, want %v", exp, i, j, x, w)
				}
			}
		}
	}
}

// The rms of a row that float64 cannot square.
func TestDecomposedRMSOfAnySize(t *testing.T) {
	for _, x := range []float64{0x1p700, 0x1p-700, 1} {
		tape := autograd.NewTape(context.Background(), cpu.New())
		row, err := tensor.FromFloat64s(tensor.Float64, []float64{x, -x, x}, 1, 1, 3)
		if err != nil {
			t.Fatal(err)
		}
		p := blockattnres.Decompose(blockattnres.Inputs{Blocks: []*autograd.Var{tape.Watch(row), tape.Watch(row)}, ProjWeight: tape.Watch(noise(t, tensor.Float64, 1, 3)), RMSNormGamma: tape.Watch(noise(t, tensor.Float64, 2, 3))}, blockattnres.Eps(0))
		rms, err := p.RMS.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rms {
			if math.Abs(r/x-1) > 1e-15 {
				t.Errorf("rms %v, want %v", r, x)
			}
		}
		tape.Release()
	}
}

// The defaults of the document: scale 1, eps 1e-6, RMSNorm on.
func TestDefaults(t *testing.T) {
	zero, err := tensor.Zeros(tensor.Float64, 1, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	dev := cpu.New()
	defer dev.Close()
	in := operands(t, tensor.Float64, 2, 1, 1, 2)
	sameBits(t, "defaults", runBoth(t, dev, in, noise(t, tensor.Float64, 5, 1, 1, 2)), runBoth(t, dev, in, noise(t, tensor.Float64, 5, 1, 1, 2), blockattnres.Scale(1), blockattnres.Eps(1e-6)))
	in.Blocks[0] = zero
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: true})
	if err != nil {
		t.Fatal(err)
	}
	if rms, err := out.RMS.Float64s(); err != nil || rms[0] != math.Sqrt(1e-6) {
		t.Errorf("the rms of a row of zeros is %v, want 1e-3 (%v)", rms, err)
	}
}

// declining is a device whose fused kernel takes no call.
type declining struct{ *cpu.Device }

func (declining) BlockAttnResForward(context.Context, *device.BlockAttnResArgs, *device.BlockAttnResOut) error {
	return fmt.Errorf("not these sizes: %w", errors.ErrUnsupported)
}

// Where the device declines, Apply is the definition in float64, rounded once,
// as where it has no kernel, and what was made for the kernel is given back.
func TestDeclined(t *testing.T) {
	for _, d := range everyDType {
		in := operands(t, d, 3, 1, 40, 33)
		seed := noise(t, d, 300, 1, 40, 33)
		want := gradients(t, path{"", plain{cpu.New()}, blockattnres.Apply}, in, seed)
		got := gradients(t, path{"", declining{cpu.New()}, blockattnres.Apply}, in, seed)
		for i := range want {
			for j := range want[i] {
				if got[i][j] != want[i][j] {
					t.Fatalf("%v: result %d element %d is %v, want %v", d, i, j, got[i][j], want[i][j])
				}
			}
		}
	}
	dev := cpu.New()
	inUse := func(on device.Device) int {
		tape := autograd.NewTape(context.Background(), on)
		defer tape.Release()
		var v []*autograd.Var
		for _, x := range list(operands(t, tensor.Float64, 3, 1, 40, 33)) {
			v = append(v, tape.Watch(x))
		}
		if err := blockattnres.Apply(inputs(v, 3, true, true)).Err(); err != nil {
			t.Fatal(err)
		}
		n, _, _ := dev.Memory()
		return n
	}
	if a, b := inUse(declining{dev}), inUse(plain{dev}); a != b {
		t.Errorf("%d bytes in use after a kernel declined, %d without one", a, b)
	}
}

// A result that is used twice: in 16 bits its gradient is summed in float32, and
// the kernel gets it in the result's dtype.
func TestUsedTwice(t *testing.T) {
	for _, d := range everyDType {
		in := operands(t, d, 2, 1, 3, 5)
		twice := func(f func(blockattnres.Inputs, ...blockattnres.Option) *autograd.Var) func(blockattnres.Inputs, ...blockattnres.Option) *autograd.Var {
			return func(in blockattnres.Inputs, o ...blockattnres.Option) *autograd.Var {
				h := f(in, o...)
				return ops.Add(h, h)
			}
		}
		seed := noise(t, d, 300, 1, 3, 5)
		ps := paths()
		got := gradients(t, path{"", ps[0].dev, twice(ps[0].f)}, in, seed)
		want := gradients(t, path{"", ps[1].dev, twice(ps[1].f)}, in, seed)
		unit := map[tensor.DType]float64{tensor.Float32: 1e-6, tensor.Float64: 1e-14, tensor.BFloat16: 0x1p-7, tensor.Float16: 0x1p-10}[d]
		for i := range want {
			for j, w := range want[i] {
				if math.Abs(got[i][j]-w) > unit*math.Max(1, math.Abs(w)) {
					t.Fatalf("%v: result %d element %d is %v, want %v", d, i, j, got[i][j], w)
				}
			}
		}
	}
}

// Without RMSNorm there is no gradient of gamma.
func TestNoGammaGradient(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	in := operands(t, tensor.Float32, 2, 1, 3, 5)
	in.RMSNormGamma = nil
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{Alpha: true}, blockattnres.WithoutRMSNorm())
	if err != nil {
		t.Fatal(err)
	}
	g, err := blockattnres.Backward(s, noise(t, tensor.Float32, 3, 1, 3, 5), in, out.Alpha, nil, blockattnres.WithoutRMSNorm())
	if err != nil || g.RMSNormGamma != nil || g.ProjWeight == nil {
		t.Errorf("%v, %+v", err, g)
	}
}

// Without any operand it is the count of the blocks that is wrong.
func TestNoOperands(t *testing.T) {
	for _, y := range []*autograd.Var{blockattnres.Apply(blockattnres.Inputs{}), blockattnres.Decomposed(blockattnres.Inputs{})} {
		if err := y.Err(); !errors.Is(err, tensor.ErrCount) || !strings.Contains(err.Error(), "blocks") {
			t.Error(err)
		}
	}
}

// Without RMSNorm gamma has no gradient, on either path.
func TestUnusedGamma(t *testing.T) {
	for _, p := range paths() {
		in := operands(t, tensor.Float32, 2, 1, 2, 4)
		tape := autograd.NewTape(context.Background(), p.dev)
		var v []*autograd.Var
		for _, x := range list(in) {
			v = append(v, tape.Watch(x))
		}
		h := p.f(inputs(v, 2, true, true), blockattnres.WithoutRMSNorm())
		g, err := tape.BackwardFrom(h, noise(t, tensor.Float32, 9, 1, 2, 4))
		if err != nil {
			t.Fatal(err)
		}
		if g.Of(in.RMSNormGamma) != nil || g.Of(in.ProjWeight) == nil {
			t.Errorf("%s: gamma has a gradient", p.name)
		}
		tape.Release()
	}
}
