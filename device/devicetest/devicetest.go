// Package devicetest is the conformance suite of a device: a device that passes
// [Run] computes every operation of the module.
//
//	func TestDevice(t *testing.T) { devicetest.Run(t, mydevice.New()) }
//
// Each kernel is compared, in every dtype, on dense and on strided views and on
// odd sizes, with a plain float64 computation of this package. The optional
// fused kernels that the device has are compared too.
package devicetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Tolerances of a result beside the float64 answer, relative to the largest
// value in sight; 16-bit results may be one unit in the last place off as well.
const (
	tolerance64 = 1e-12
	tolerance32 = 2e-6
)

var floats = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}

// Run tests a device.
func Run(t *testing.T, dev device.Device) {
	s := &suite{dev: dev}
	t.Run("memory", s.memory)
	t.Run("transfer", s.transfer)
	t.Run("fill", s.fill)
	t.Run("copy", s.copy)
	t.Run("unary", s.unary)
	t.Run("binary", s.binary)
	t.Run("where", s.where)
	t.Run("reduce", s.reduce)
	t.Run("matmul", s.matmul)
	t.Run("rows", s.rows)
	t.Run("refusals", s.refusals)
	t.Run("cancelled", s.cancelled)
	if fused, ok := dev.(device.BlockAttnRes); ok {
		t.Run("blockattnres", func(t *testing.T) { s.blockAttnRes(t, fused) })
	}
}

type suite struct {
	dev  device.Device
	draw uint64
}

var ctx = context.Background()

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// operand is a tensor on the device with its values as the dtype holds them.
type operand struct {
	*tensor.Tensor
	x []float64
}

// layouts are ways in which a tensor can lie in memory.
var layouts = []string{"dense", "permuted", "sliced"}

// place makes a tensor of the given values, which are rounded to the dtype.
func (s *suite) place(t *testing.T, d tensor.DType, layout string, values []float64, shape ...int) operand {
	t.Helper()
	v := s.empty(t, d, layout, shape...)
	host, err := tensor.FromFloat64s(d, values, shape...)
	must(t, err)
	must(t, s.dev.Upload(ctx, v, host))
	x, err := host.Float64s()
	must(t, err)
	return operand{v, x}
}

// empty is a tensor of some layout, whose memory is filled with NaN so that a
// kernel that reads or leaves what it should not is seen.
func (s *suite) empty(t *testing.T, d tensor.DType, layout string, shape ...int) *tensor.Tensor {
	t.Helper()
	big := append([]int{}, shape...)
	if layout == "permuted" {
		for i, j := 0, len(big)-1; i < j; i, j = i+1, j-1 {
			big[i], big[j] = big[j], big[i]
		}
	}
	if layout == "sliced" {
		for i := range big {
			big[i] += 2 + i
		}
	}
	mem, err := s.dev.Alloc(tensor.Shape(big).Len() * d.Size())
	must(t, err)
	t.Cleanup(func() { s.dev.Free(mem) })
	v, err := tensor.New(mem, d, big...)
	must(t, err)
	if d.IsFloat() {
		must(t, s.dev.Fill(ctx, v, math.NaN()))
	} else {
		must(t, s.dev.Fill(ctx, v, 0))
	}
	if layout == "permuted" {
		axes := make([]int, len(big))
		for i := range axes {
			axes[i] = len(axes) - 1 - i
		}
		v, err = v.Permute(axes...)
		must(t, err)
	}
	if layout == "sliced" {
		for i := range shape {
			v, err = v.Slice(i, 1, 1+shape[i])
			must(t, err)
		}
	}
	return v
}

// numbers draws n values between lo and hi.
func (s *suite) numbers(n int, lo, hi float64) []float64 {
	s.draw++
	src := random.Source{Seed: 7, Stream: s.draw}
	x := make([]float64, n)
	for i := range x {
		x[i] = lo + (hi-lo)*src.Float64(uint64(i))
	}
	return x
}

func (s *suite) get(t *testing.T, v *tensor.Tensor) []float64 {
	t.Helper()
	host, err := tensor.Zeros(v.DType(), v.Shape()...)
	must(t, err)
	must(t, s.dev.Sync(ctx))
	must(t, s.dev.Download(ctx, host, v))
	x, err := host.Float64s()
	must(t, err)
	return x
}

// check compares a result with the float64 answer; scale is the size of the
// terms that the answer is made of.
func (s *suite) check(t *testing.T, what string, out *tensor.Tensor, want []float64, scale float64) {
	t.Helper()
	got := s.get(t, out)
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	d := out.DType()
	tol := tolerance32
	if d == tensor.Float64 {
		tol = tolerance64
	}
	for i, g := range got {
		w := tensor.Round(d, want[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		allowed := tol * math.Max(scale, math.Abs(w))
		switch d {
		case tensor.Float16:
			allowed += math.Max(math.Abs(w)*0x1p-10, 0x1p-24)
		case tensor.BFloat16:
			allowed += math.Max(math.Abs(w)*0x1p-7, 0x1p-133)
		}
		if !(math.Abs(g-w) <= allowed) {
			t.Fatalf("%s: element %d of %v is %v, want %v (+- %.3g)", what, i, out, g, w, allowed)
		}
	}
}

func (s *suite) memory(t *testing.T) {
	for _, n := range []int{0, 1, 3, 64, 1000, 1 << 20} {
		m, err := s.dev.Alloc(n)
		must(t, err)
		if m.Size() != n {
			t.Errorf("Alloc(%d) has %d bytes", n, m.Size())
		}
		if m.Device() != s.dev.Name() {
			t.Errorf("memory on %v, want %v", m.Device(), s.dev.Name())
		}
		v := m.Version()
		m.Written()
		if m.Version() <= v {
			t.Error("Written does not move the version on")
		}
		s.dev.Free(m)
	}
	if _, err := s.dev.Alloc(-1); err == nil {
		t.Error("Alloc(-1) is not refused")
	}
}

func (s *suite) transfer(t *testing.T) {
	for _, d := range append(append([]tensor.DType{}, floats...), tensor.Int32, tensor.Int64) {
		for _, layout := range layouts {
			x := s.numbers(3*5*7, -100, 100)
			v := s.place(t, d, layout, x, 3, 5, 7)
			got := s.get(t, v.Tensor)
			for i := range got {
				if got[i] != v.x[i] {
					t.Fatalf("%v %s: element %d is %v, want %v", d, layout, i, got[i], v.x[i])
				}
			}
		}
	}
}

func (s *suite) fill(t *testing.T) {
	for _, d := range floats {
		for _, layout := range layouts {
			v := s.empty(t, d, layout, 3, 7)
			before := v.Memory().Version()
			must(t, s.dev.Fill(ctx, v, -2.5))
			if v.Memory().Version() <= before {
				t.Error("Fill does not move the version on")
			}
			for i, g := range s.get(t, v) {
				if g != -2.5 {
					t.Fatalf("%v %s: element %d is %v", d, layout, i, g)
				}
			}
		}
	}
}

func (s *suite) copy(t *testing.T) {
	special := []float64{0, math.Copysign(0, -1), 1, 1 + 0x1p-8, 1 + 0x3p-8, 65504, 65519.99, 65520, -65520, 0x1p-24, 0x1p-25, 0x3p-26, 0x1p-133, 0x1p-134,
		3.4e38, math.Inf(1), math.Inf(-1), math.NaN(), 1e-45, 257, 2049, 2051, 1e300, -1e-300}
	for _, from := range floats {
		for _, to := range floats {
			for _, layout := range layouts {
				x := s.place(t, from, layout, append(special, s.numbers(11, -3, 3)...), 5, 7)
				out := s.empty(t, to, layout, 5, 7)
				must(t, s.dev.Copy(ctx, out, x.Tensor))
				for i, g := range s.get(t, out) {
					if w := tensor.Round(to, x.x[i]); math.Float64bits(g) != math.Float64bits(w) && !(math.IsNaN(g) && math.IsNaN(w)) {
						t.Fatalf("%v to %v, %s: %v became %v, want %v", from, to, layout, x.x[i], g, w)
					}
				}
			}
		}
	}
}

// function is a function of one number with its derivative, in float64.
type function struct {
	f      device.Unary
	lo, hi float64
	y, dy  func(x float64) float64
}

func functions() []function {
	phi := func(x float64) float64 { return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi) }
	cdf := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	sig := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	u := func(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }
	du := func(x float64) float64 { return math.Sqrt(2/math.Pi) * (1 + 3*0.044715*x*x) }
	sech2 := func(x float64) float64 { c := 1 / math.Cosh(x); return c * c }
	step := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	one := func(float64) float64 { return 1 }
	of := func(f device.UnaryFunc) device.Unary { return device.Unary{Func: f} }
	with := func(f device.UnaryFunc, a, b float64) device.Unary { return device.Unary{Func: f, A: a, B: b} }
	return []function{
		{of(device.Neg), -4, 4, func(x float64) float64 { return -x }, func(float64) float64 { return -1 }},
		{of(device.Abs), -4, 4, math.Abs, func(x float64) float64 { return math.Copysign(1, x) }},
		{of(device.Exp), -6, 6, math.Exp, math.Exp},
		{of(device.Log), 0.1, 9, math.Log, func(x float64) float64 { return 1 / x }},
		{of(device.Sqrt), 0.1, 9, math.Sqrt, func(x float64) float64 { return 0.5 / math.Sqrt(x) }},
		{of(device.Rsqrt), 0.1, 9, func(x float64) float64 { return 1 / math.Sqrt(x) }, func(x float64) float64 { return -0.5 / (x * math.Sqrt(x)) }},
		{of(device.Reciprocal), 0.2, 5, func(x float64) float64 { return 1 / x }, func(x float64) float64 { return -1 / (x * x) }},
		{of(device.Square), -4, 4, func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }},
		{of(device.Sin), -9, 9, math.Sin, math.Cos},
		{of(device.Cos), -9, 9, math.Cos, func(x float64) float64 { return -math.Sin(x) }},
		{of(device.Tanh), -4, 4, math.Tanh, sech2},
		{of(device.Erf), -3, 3, math.Erf, func(x float64) float64 { return 2 / math.Sqrt(math.Pi) * math.Exp(-x*x) }},
		{of(device.Sigmoid), -9, 9, sig, func(x float64) float64 { return sig(x) * sig(-x) }},
		{of(device.ReLU), -4, 4, func(x float64) float64 { return math.Max(x, 0) }, func(x float64) float64 { return step(x > 0) }},
		{of(device.GELU), -6, 6, func(x float64) float64 { return x * cdf(x) }, func(x float64) float64 { return cdf(x) + x*phi(x) }},
		{of(device.GELUTanh), -6, 6, func(x float64) float64 { return x / 2 * (1 + math.Tanh(u(x))) },
			func(x float64) float64 { return (1+math.Tanh(u(x)))/2 + x/2*sech2(u(x))*du(x) }},
		{of(device.SiLU), -9, 9, func(x float64) float64 { return x * sig(x) }, func(x float64) float64 { return sig(x) + x*sig(x)*sig(-x) }},
		{with(device.Clamp, -0.5, 1.25), -4, 4, func(x float64) float64 { return math.Min(math.Max(x, -0.5), 1.25) }, func(x float64) float64 { return step(x >= -0.5 && x <= 1.25) }},
		{with(device.Pow, 2.5, 0), 0.1, 4, func(x float64) float64 { return math.Pow(x, 2.5) }, func(x float64) float64 { return 2.5 * math.Pow(x, 1.5) }},
		{with(device.AddScalar, 1.5, 0), -4, 4, func(x float64) float64 { return x + 1.5 }, one},
		{with(device.SubFrom, 1.5, 0), -4, 4, func(x float64) float64 { return 1.5 - x }, func(float64) float64 { return -1 }},
		{with(device.MulScalar, -0.75, 0), -4, 4, func(x float64) float64 { return x * -0.75 }, func(float64) float64 { return -0.75 }},
		{with(device.DivScalar, 3, 0), -4, 4, func(x float64) float64 { return x / 3 }, func(float64) float64 { return 1.0 / 3 }},
		{with(device.DivInto, 3, 0), 0.2, 5, func(x float64) float64 { return 3 / x }, func(x float64) float64 { return -3 / (x * x) }},
		{with(device.MaxScalar, 0.5, 0), -4, 4, func(x float64) float64 { return math.Max(x, 0.5) }, func(x float64) float64 { return half(x, 0.5) }},
		{with(device.MinScalar, 0.5, 0), -4, 4, func(x float64) float64 { return math.Min(x, 0.5) }, func(x float64) float64 { return half(0.5, x) }},
	}
}

// half is the derivative of max(a, b) by a.
func half(a, b float64) float64 {
	switch {
	case a > b:
		return 1
	case a == b:
		return 0.5
	}
	return 0
}

func apply(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = f(x[i])
	}
	return y
}

func (s *suite) unary(t *testing.T) {
	for _, f := range functions() {
		for _, d := range floats {
			for _, layout := range layouts {
				what := fmt.Sprintf("function %d, %v, %s", f.f.Func, d, layout)
				x := s.place(t, d, layout, s.numbers(3*43, f.lo, f.hi), 3, 43)
				g := s.place(t, d, "dense", s.numbers(3*43, -2, 2), 3, 43)
				out := s.empty(t, d, layout, 3, 43)
				must(t, s.dev.Unary(ctx, f.f, out, x.Tensor))
				s.check(t, what, out, apply(x.x, f.y), 1)
				must(t, s.dev.UnaryGrad(ctx, f.f, out, g.Tensor, x.Tensor))
				want := apply(x.x, f.dy)
				for i := range want {
					want[i] *= g.x[i]
				}
				s.check(t, what+", derivative", out, want, 2)
			}
		}
	}
}

func (s *suite) binary(t *testing.T) {
	for f, y := range map[device.Binary]func(a, b float64) float64{
		device.Add: func(a, b float64) float64 { return a + b }, device.Sub: func(a, b float64) float64 { return a - b },
		device.Mul: func(a, b float64) float64 { return a * b }, device.Div: func(a, b float64) float64 { return a / b },
		device.Maximum: math.Max, device.Minimum: math.Min, device.Greater: half,
		device.Equal: func(a, b float64) float64 {
			if a == b {
				return 1
			}
			return 0
		},
	} {
		for _, d := range floats {
			for _, layout := range layouts {
				a := s.place(t, d, layout, s.numbers(5*9, -3, 3), 5, 9)
				b := s.place(t, d, "dense", s.numbers(9, 0.5, 3), 9) // broadcast over rows
				wide, err := b.Expand(5, 9)
				must(t, err)
				want := make([]float64, 45)
				for i := range want {
					want[i] = y(a.x[i], b.x[i%9])
				}
				out := s.empty(t, d, layout, 5, 9)
				must(t, s.dev.Binary(ctx, f, out, a.Tensor, wide))
				s.check(t, fmt.Sprintf("function %d, %v, %s", f, d, layout), out, want, 1)
				must(t, s.dev.Binary(ctx, f, a.Tensor, a.Tensor, wide)) // in place
				s.check(t, fmt.Sprintf("function %d in place, %v, %s", f, d, layout), a.Tensor, want, 1)
			}
		}
	}
}

func (s *suite) where(t *testing.T) {
	for _, d := range floats {
		for _, mask := range []tensor.DType{tensor.Int32, tensor.Int64} {
			a := s.place(t, d, "permuted", s.numbers(35, -3, 3), 5, 7)
			nan := make([]float64, 35)
			for i := range nan {
				nan[i] = math.NaN()
			}
			b := s.place(t, d, "dense", nan, 5, 7)
			keep := make([]float64, 35)
			want := make([]float64, 35)
			for i := range keep {
				keep[i] = float64(i % 3 * 5)
				want[i] = a.x[i]
				if keep[i] == 0 {
					want[i] = math.NaN()
				}
			}
			c := s.place(t, mask, "sliced", keep, 5, 7)
			out := s.empty(t, d, "dense", 5, 7)
			must(t, s.dev.Where(ctx, out, c.Tensor, a.Tensor, b.Tensor))
			s.check(t, fmt.Sprint(d), out, want, 0)
		}
	}
}

func (s *suite) reduce(t *testing.T) {
	for _, d := range floats {
		for _, layout := range layouts {
			for _, to := range [][]int{{4, 1, 17}, {1, 5, 17}, {4, 5, 1}, {1, 1, 17}, {4, 1, 1}, {1, 1, 1}, {4, 5, 17}} {
				x := s.place(t, d, layout, s.numbers(4*5*17, -3, 3), 4, 5, 17)
				n := 4 * 5 * 17 / tensor.Shape(to).Len()
				fold := func(start float64, f func(acc, x float64) float64) []float64 {
					out := make([]float64, tensor.Shape(to).Len())
					for i := range out {
						out[i] = start
					}
					for i, v := range x.x {
						at := [3]int{i / 85, i / 17 % 5, i % 17}
						o := 0
						for k := range 3 {
							o = o*to[k] + at[k]%to[k]
						}
						out[o] = f(out[o], v)
					}
					return out
				}
				sum := func(a, v float64) float64 { return a + v }
				sq := func(a, v float64) float64 { return a + v*v }
				div := func(x []float64) []float64 { return apply(x, func(v float64) float64 { return v / float64(n) }) }
				for f, want := range map[device.Reduction][]float64{
					device.Sum: fold(0, sum), device.Mean: div(fold(0, sum)), device.SumSquares: fold(0, sq), device.MeanSquare: div(fold(0, sq)),
					device.Max: fold(math.Inf(-1), math.Max), device.Min: fold(math.Inf(1), math.Min),
				} {
					out := s.empty(t, d, layout, to...)
					must(t, s.dev.Reduce(ctx, f, out, x.Tensor))
					s.check(t, fmt.Sprintf("reduction %d of %v to %v, %s", f, d, to, layout), out, want, float64(n))
				}
			}
		}
	}
}

func (s *suite) matmul(t *testing.T) {
	for _, d := range floats {
		for _, layout := range layouts {
			for _, size := range [][4]int{{1, 1, 1, 1}, {2, 3, 5, 4}, {3, 17, 33, 9}, {1, 65, 129, 31}, {2, 1, 40, 7}, {2, 7, 40, 1}, {1, 4, 0, 3}} {
				b, m, k, n := size[0], size[1], size[2], size[3]
				x := s.place(t, d, layout, s.numbers(b*m*k, -2, 2), b, m, k)
				y := s.place(t, d, layout, s.numbers(b*k*n, -2, 2), b, k, n)
				want := make([]float64, b*m*n)
				for e := range want {
					i, j, l := e/(m*n), e/n%m, e%n
					for c := range k {
						want[e] += x.x[(i*m+j)*k+c] * y.x[(i*k+c)*n+l]
					}
				}
				out := s.empty(t, d, layout, b, m, n)
				must(t, s.dev.MatMul(ctx, out, x.Tensor, y.Tensor))
				s.check(t, fmt.Sprintf("%v, %v, %s", size, d, layout), out, want, float64(max(k, 1)))
			}
		}
	}
}

func (s *suite) rows(t *testing.T) {
	ids := []float64{3, 0, 3, 4, 3}
	for _, d := range floats {
		for _, kind := range []tensor.DType{tensor.Int32, tensor.Int64} {
			table := s.place(t, d, "permuted", s.numbers(5*7, -3, 3), 5, 7)
			at := s.place(t, kind, "sliced", ids, 5)
			out := s.empty(t, d, "dense", 5, 7)
			must(t, s.dev.Gather(ctx, out, table.Tensor, at.Tensor))
			picked := make([]float64, 35)
			for i := range picked {
				picked[i] = table.x[int(ids[i/7])*7+i%7]
			}
			s.check(t, fmt.Sprintf("gather %v", d), out, picked, 0)

			x := s.place(t, d, "sliced", s.numbers(35, -3, 3), 5, 7)
			want := append([]float64{}, table.x...)
			for i := range x.x {
				want[int(ids[i/7])*7+i%7] += x.x[i]
			}
			must(t, s.dev.ScatterAdd(ctx, table.Tensor, at.Tensor, x.Tensor))
			s.check(t, fmt.Sprintf("scatter-add %v", d), table.Tensor, want, 4)

			for _, bad := range []float64{-1, 5} {
				wrong := s.place(t, kind, "dense", []float64{0, bad, 0, 0, 0}, 5)
				if err := s.dev.Gather(ctx, out, table.Tensor, wrong.Tensor); !errors.Is(err, tensor.ErrIndex) {
					t.Errorf("gather of id %v: %v", bad, err)
				}
				if err := s.dev.ScatterAdd(ctx, table.Tensor, wrong.Tensor, x.Tensor); !errors.Is(err, tensor.ErrIndex) {
					t.Errorf("scatter-add to id %v: %v", bad, err)
				}
			}
			s.check(t, "after refused ids", table.Tensor, want, 4)
		}
	}
}

func (s *suite) refusals(t *testing.T) {
	a := s.empty(t, tensor.Float32, "dense", 2, 3)
	b := s.empty(t, tensor.Float32, "dense", 3, 2)
	ids := s.empty(t, tensor.Int64, "dense", 2)
	wide, err := s.empty(t, tensor.Float32, "dense", 1, 3).Expand(2, 3)
	must(t, err)
	square := s.empty(t, tensor.Float32, "dense", 3, 3)
	turned, err := square.Transpose(0, 1)
	must(t, err)
	add := device.Unary{Func: device.AddScalar}
	for name, c := range map[string]struct {
		err  error
		kind error
	}{
		"fill nil":              {s.dev.Fill(ctx, nil, 0), tensor.ErrMissing},
		"fill expanded":         {s.dev.Fill(ctx, wide, 0), tensor.ErrAlias},
		"copy shapes":           {s.dev.Copy(ctx, a, b), tensor.ErrShape},
		"copy onto itself":      {s.dev.Copy(ctx, turned, square), tensor.ErrAlias},
		"unary nil":             {s.dev.Unary(ctx, add, a, nil), tensor.ErrMissing},
		"unary shapes":          {s.dev.Unary(ctx, add, a, b), tensor.ErrShape},
		"unary function":        {s.dev.Unary(ctx, device.Unary{Func: 255}, a, a), tensor.ErrValue},
		"unary ids":             {s.dev.Unary(ctx, add, ids, ids), tensor.ErrDType},
		"unary gradient shapes": {s.dev.UnaryGrad(ctx, add, a, b, a), tensor.ErrShape},
		"binary shapes":         {s.dev.Binary(ctx, device.Add, a, a, b), tensor.ErrShape},
		"binary function":       {s.dev.Binary(ctx, 255, a, a, a), tensor.ErrValue},
		"where mask":            {s.dev.Where(ctx, a, a, a, a), tensor.ErrDType},
		"reduce shapes":         {s.dev.Reduce(ctx, device.Sum, b, a), tensor.ErrShape},
		"matmul shapes":         {s.dev.MatMul(ctx, a, a, b), tensor.ErrShape},
		"gather ranks":          {s.dev.Gather(ctx, a, a, a), tensor.ErrRank},
		"download dtype":        {s.dev.Download(ctx, ids, nil), tensor.ErrMissing},
	} {
		if !errors.Is(c.err, c.kind) {
			t.Errorf("%s: %v, want %v", name, c.err, c.kind)
		}
	}
}

func (s *suite) cancelled(t *testing.T) {
	gone, cancel := context.WithCancel(ctx)
	cancel()
	a := s.place(t, tensor.Float32, "dense", s.numbers(6, 0, 1), 2, 3)
	out := s.empty(t, tensor.Float32, "dense", 2, 3)
	for name, err := range map[string]error{
		"unary":  s.dev.Unary(gone, device.Unary{Func: device.Exp}, out, a.Tensor),
		"binary": s.dev.Binary(gone, device.Add, out, a.Tensor, a.Tensor),
		"copy":   s.dev.Copy(gone, out, a.Tensor),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
}
