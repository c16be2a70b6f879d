package cpu

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// function is a device.Unary with the same by other means.
type function struct {
	name   string
	f      device.Unary
	want   func(x float64) float64
	slope  func(x float64) float64
	lo, hi float64 // where it is tried
}

func phi(x float64) float64     { return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi) }
func cdf(x float64) float64     { return math.Erfc(-x/math.Sqrt2) / 2 }
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func where01(c bool) float64 {
	if c {
		return 1
	}
	return 0
}

var root2pi = math.Sqrt(2 / math.Pi)

func functions() []function {
	u := func(f device.UnaryFunc, p ...float64) device.Unary {
		p = append(p, 0, 0)
		return device.Unary{Func: f, A: p[0], B: p[1]}
	}
	pow := func(a float64) function {
		return function{fmt.Sprint("pow ", a), u(device.Pow, a), func(x float64) float64 { return math.Pow(x, a) },
			func(x float64) float64 {
				if a == 0 {
					return 0
				}
				return a * math.Pow(x, a-1)
			}, 0.1, 4}
	}
	return []function{
		{"neg", u(device.Neg), func(x float64) float64 { return -x }, func(x float64) float64 { return -1 }, -9, 9},
		{"abs", u(device.Abs), math.Abs, func(x float64) float64 { return where01(x > 0) - where01(x < 0) }, -9, 9},
		{"exp", u(device.Exp), math.Exp, math.Exp, -9, 9},
		{"log", u(device.Log), math.Log, func(x float64) float64 { return 1 / x }, 1.5, 90},
		{"log below 1", u(device.Log), math.Log, func(x float64) float64 { return 1 / x }, 1e-5, 0.7},
		{"sqrt", u(device.Sqrt), math.Sqrt, func(x float64) float64 { return 0.5 / math.Sqrt(x) }, 0, 90},
		{"rsqrt", u(device.Rsqrt), func(x float64) float64 { return 1 / math.Sqrt(x) }, func(x float64) float64 { return -0.5 * math.Pow(x, -1.5) }, 0.01, 90},
		{"reciprocal", u(device.Reciprocal), func(x float64) float64 { return 1 / x }, func(x float64) float64 { return -1 / (x * x) }, -9, 9},
		{"square", u(device.Square), func(x float64) float64 { return x * x }, func(x float64) float64 { return 2 * x }, -9, 9},
		{"sin", u(device.Sin), math.Sin, math.Cos, -1.5, 1.5},
		{"cos", u(device.Cos), math.Cos, func(x float64) float64 { return -math.Sin(x) }, -1.5, 1.5},
		{"tanh", u(device.Tanh), math.Tanh, func(x float64) float64 { c := math.Cosh(x); return 1 / (c * c) }, -30, 30},
		{"erf", u(device.Erf), math.Erf, func(x float64) float64 { return 2 / math.SqrtPi * math.Exp(-x*x) }, -4, 4},
		{"sigmoid", u(device.Sigmoid), sigmoid, func(x float64) float64 { return sigmoid(x) * sigmoid(-x) }, -30, 30},
		{"relu", u(device.ReLU), func(x float64) float64 { return math.Max(x, 0) }, func(x float64) float64 { return where01(x > 0) }, -9, 9},
		{"gelu", u(device.GELU), func(x float64) float64 { return x * cdf(x) }, func(x float64) float64 { return cdf(x) + x*phi(x) }, -5, 9},
		{"gelu tanh", u(device.GELUTanh), func(x float64) float64 { return x * sigmoid(2*root2pi*(x+0.044715*x*x*x)) },
			func(x float64) float64 {
				z := 2 * root2pi * (x + 0.044715*x*x*x)
				return sigmoid(z) + x*sigmoid(z)*sigmoid(-z)*2*root2pi*(1+3*0.044715*x*x)
			}, -3, 9},
		{"silu", u(device.SiLU), func(x float64) float64 { return x * sigmoid(x) }, func(x float64) float64 { return sigmoid(x) * (1 + x*sigmoid(-x)) }, -30, 30},
		{"clamp", u(device.Clamp, -1.5, 2), func(x float64) float64 { return math.Min(math.Max(x, -1.5), 2) }, func(x float64) float64 { return where01(x >= -1.5 && x <= 2) }, -4, 4},
		pow(0), pow(1), pow(2), pow(3), pow(-1), pow(0.5), pow(2.7), pow(-1.3),
		{"add", u(device.AddScalar, 20.1), func(x float64) float64 { return x + 20.1 }, func(x float64) float64 { return 1 }, -9, 9},
		{"sub from", u(device.SubFrom, 20.1), func(x float64) float64 { return 20.1 - x }, func(x float64) float64 { return -1 }, -9, 9},
		{"mul", u(device.MulScalar, 0.1), func(x float64) float64 { return x * 0.1 }, func(x float64) float64 { return 0.1 }, -9, 9},
		{"div", u(device.DivScalar, 0.3), func(x float64) float64 { return x / 0.3 }, func(x float64) float64 { return 1 / 0.3 }, -9, 9},
		{"div into", u(device.DivInto, 0.3), func(x float64) float64 { return 0.3 / x }, func(x float64) float64 { return -0.3 / (x * x) }, -9, 9},
		{"max", u(device.MaxScalar, 0.5), func(x float64) float64 { return math.Max(x, 0.5) }, func(x float64) float64 { return where01(x > 0.5) + where01(x == 0.5)/2 }, -2, 2},
		{"min", u(device.MinScalar, 0.5), func(x float64) float64 { return math.Min(x, 0.5) }, func(x float64) float64 { return where01(x < 0.5) + where01(x == 0.5)/2 }, -2, 2},
	}
}

func TestUnary(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(1, 1))
	covered := map[device.UnaryFunc]bool{}
	for _, fn := range functions() {
		covered[fn.f.Func] = true
		for _, dt := range floats {
			for n := 0; n <= 130; n++ {
				x := laid(t, shifted, dt, numbers(r, n, fn.lo, fn.hi), n)
				g := laid(t, dense, dt, numbers(r, n, -3, 3), n)
				y, dx := laid(t, shifted, dt, nil, n), laid(t, shifted, dt, nil, n)
				ok(t, d.Unary(bg, fn.f, y, x))
				ok(t, d.UnaryGrad(bg, fn.f, dx, g, x))
				xs, gs := values(t, x), values(t, g)
				for i, got := range values(t, y) {
					if want := fn.want(xs[i]); !near(dt, got, want, 1e-14) {
						t.Fatalf("%s %v of %v is %v, want %v", fn.name, dt, xs[i], got, want)
					}
				}
				for i, got := range values(t, dx) {
					want := gs[i] * fn.slope(xs[i])
					// Where terms cancel, what is left is only as good as they are.
					if !near(dt, got, want, 1e-13) && math.Abs(got-want) > 4e-15 {
						t.Fatalf("%s %v: slope at %v times %v is %v, want %v", fn.name, dt, xs[i], gs[i], got, want)
					}
				}
				outsideIntact(t, fn.name, y)
				outsideIntact(t, fn.name, dx)
			}
		}
	}
	for f := device.Neg; f <= device.MinScalar; f++ {
		if !covered[f] {
			t.Errorf("function %d is not tried", f)
		}
	}
}

// The derivatives are those of what Unary computes.
func TestUnaryGradByDifferences(t *testing.T) {
	d := newDevice(t, 1)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 200
	for _, fn := range functions() {
		h := 1e-5
		xs := numbers(r, n, max(fn.lo, 0.2*min(1, fn.hi)*where01(fn.lo >= 0)), fn.hi)
		at := func(shift float64) []float64 {
			v := make([]float64, n)
			for i := range v {
				v[i] = xs[i] + shift
			}
			x, y := laid(t, dense, tensor.Float64, v, n), laid(t, dense, tensor.Float64, nil, n)
			ok(t, d.Unary(bg, fn.f, y, x))
			return values(t, y)
		}
		up, down := at(h), at(-h)
		one := laid(t, dense, tensor.Float64, nil, n)
		ok(t, d.Fill(bg, one, 1))
		x, dx := laid(t, dense, tensor.Float64, xs, n), laid(t, dense, tensor.Float64, nil, n)
		ok(t, d.UnaryGrad(bg, fn.f, dx, one, x))
		for i, got := range values(t, dx) {
			kink := false
			for _, k := range []float64{0, -1.5, 2, 0.5} {
				kink = kink || math.Abs(xs[i]-k) < 2*h
			}
			if fn.name == "reciprocal" || fn.name == "div into" {
				kink = math.Abs(xs[i]) < 0.3
			}
			want := (up[i] - down[i]) / (2 * h)
			if !kink && math.Abs(got-want) > 1e-7*max(1, math.Abs(want)) {
				t.Errorf("%s: slope at %v is %v, differences give %v", fn.name, xs[i], got, want)
			}
		}
	}
}

// one applies a function to one number, and its derivative times g.
func one(t *testing.T, d *Device, dt tensor.DType, f device.Unary, g, x float64) (y, dx float64) {
	t.Helper()
	in, grad := laid(t, dense, dt, []float64{x}, 1), laid(t, dense, dt, []float64{g}, 1)
	out := laid(t, dense, dt, nil, 1)
	ok(t, d.Unary(bg, f, out, in))
	y = values(t, out)[0]
	ok(t, d.UnaryGrad(bg, f, out, grad, in))
	return y, values(t, out)[0]
}

func TestUnaryFarOut(t *testing.T) {
	d := newDevice(t, 1)
	inf, nan := math.Inf(1), math.NaN()
	u := func(f device.UnaryFunc, p ...float64) device.Unary {
		p = append(p, 0, 0)
		return device.Unary{Func: f, A: p[0], B: p[1]}
	}
	same := func(a, b float64) bool {
		return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
	}
	negZero := math.Copysign(0, -1)
	for _, c := range []struct {
		f        device.Unary
		x, y, dx float64
	}{
		{u(device.SiLU), -inf, negZero, 0}, {u(device.SiLU), inf, inf, 1}, {u(device.SiLU), -1e4, negZero, 0}, {u(device.SiLU), 1e4, 1e4, 1},
		{u(device.GELU), -inf, negZero, 0}, {u(device.GELU), inf, inf, 1}, {u(device.GELU), -1e3, negZero, 0}, {u(device.GELU), 20, 20, 1},
		{u(device.GELUTanh), -inf, negZero, 0}, {u(device.GELUTanh), inf, inf, 1}, {u(device.GELUTanh), -1e4, negZero, 0}, {u(device.GELUTanh), 20, 20, 1},
		{u(device.Sigmoid), -inf, 0, 0}, {u(device.Sigmoid), inf, 1, 0},
		{u(device.Tanh), -inf, -1, 0}, {u(device.Tanh), inf, 1, 0}, {u(device.Tanh), 1e4, 1, 0}, {u(device.Tanh), negZero, negZero, 1},
		{u(device.Erf), -inf, -1, 0}, {u(device.Erf), inf, 1, 0},
		{u(device.Exp), -inf, 0, 0}, {u(device.Exp), inf, inf, inf},
		{u(device.Log), 0, -inf, inf}, {u(device.Log), -1, nan, -1},
		{u(device.Sqrt), 0, 0, inf}, {u(device.Sqrt), -1, nan, nan}, {u(device.Sqrt), inf, inf, 0},
		{u(device.Rsqrt), inf, 0, negZero}, {u(device.Rsqrt), 0, inf, -inf},
		{u(device.Abs), negZero, 0, negZero}, {u(device.Abs), 0, 0, 0}, {u(device.Abs), -inf, inf, -1},
		{u(device.ReLU), 0, 0, 0}, {u(device.ReLU), -inf, 0, 0}, {u(device.ReLU), inf, inf, 1},
		{u(device.Clamp, -1, 2), -1, -1, 1}, {u(device.Clamp, -1, 2), 2, 2, 1}, {u(device.Clamp, -1, 2), inf, 2, 0}, {u(device.Clamp, -1, 2), -inf, -1, 0},
		{u(device.Clamp, math.Inf(-1), inf), inf, inf, 1},
		{u(device.MaxScalar, 0.5), 0.5, 0.5, 0.5}, {u(device.MinScalar, 0.5), 0.5, 0.5, 0.5},
		{u(device.MaxScalar, nan), 1, nan, nan}, {u(device.MinScalar, nan), 1, nan, nan},
		{u(device.Pow, 0), nan, 1, 0}, {u(device.Pow, 0), 0, 1, 0}, {u(device.Pow, 2), -3, 9, -6}, {u(device.Pow, 3), -2, -8, 12},
		{u(device.Pow, 0.5), -1, nan, nan}, {u(device.Pow, 1), 0, 0, 1}, {u(device.Pow, -1), inf, 0, negZero}, {u(device.Pow, 2), negZero, 0, negZero},
	} {
		for _, dt := range floats {
			if math.Abs(c.x) == 1e4 && dt != tensor.Float64 {
				continue // not representable in the small formats
			}
			y, dx := one(t, d, dt, c.f, 1, c.x)
			if !same(y, tensor.Round(dt, c.y)) || !same(dx, tensor.Round(dt, c.dx)) && !(dx == 0 && c.dx == 0) { // a slope that vanishes has any sign
				t.Errorf("%v %+v at %v: %v and slope %v, want %v and %v", dt, c.f, c.x, y, dx, c.y, c.dx)
			}
		}
	}
	for _, fn := range functions() {
		if fn.f.Func == device.Pow && fn.f.A == 0 {
			continue // 1 whatever x is
		}
		for _, dt := range floats {
			y, dx := one(t, d, dt, fn.f, 1, nan)
			linear := fn.f.Func == device.Neg || fn.f.Func >= device.AddScalar && fn.f.Func <= device.DivScalar || fn.f.Func == device.Pow && fn.f.A == 1
			if y == y || dx == dx && !linear {
				t.Errorf("%s %v of NaN is %v, slope %v", fn.name, dt, y, dx)
			}
		}
	}
	// Tails, where 1 - f(x)^2 and the like would leave nothing.
	for _, c := range []struct {
		f        device.UnaryFunc
		x, slope float64
	}{
		{device.Tanh, 20, 4 * math.Exp(-40)}, {device.Tanh, -300, 4 * math.Exp(-600)},
		{device.Sigmoid, 40, math.Exp(-40)}, {device.Sigmoid, 700, math.Exp(-700)}, {device.Sigmoid, -700, math.Exp(-700)},
		{device.Erf, 5, 2 / math.SqrtPi * math.Exp(-25)}, {device.Erf, -26, 2 / math.SqrtPi * math.Exp(-676)},
		{device.SiLU, -600, -599 * math.Exp(-600)},
		{device.GELU, -12, -12*phi(12) + cdf(-12)},
	} {
		if _, dx := one(t, d, tensor.Float64, u(c.f), 1, c.x); math.Abs(dx-c.slope) > 1e-14*math.Abs(c.slope) {
			t.Errorf("slope of %d at %v is %v, want %v", c.f, c.x, dx, c.slope)
		}
	}
	// exp(-x^2) where x^2 is not exact: exp(-(x^2 rounded)) is off by up to 1e-13.
	for _, x := range []float64{25.0123, 25.001, 24.987, 25.02} {
		b := x - 25 // exact, and x^2 = 625 + 50 b + b^2
		want := 2 / math.SqrtPi * math.Exp(-625) * math.Exp(-50*b-b*b)
		if _, dx := one(t, d, tensor.Float64, u(device.Erf), 1, x); math.Abs(dx/want-1) > 2e-15 {
			t.Errorf("slope of erf at %v is off by %v", x, dx/want-1)
		}
	}
	// Results of float32 are those of float64, rounded.
	r := rand.New(rand.NewPCG(1, 3))
	for _, fn := range functions() {
		const n = 2000
		wrong := 0
		in := laid(t, dense, tensor.Float32, numbers(r, n, fn.lo, fn.hi), n)
		out := laid(t, dense, tensor.Float32, nil, n)
		ok(t, d.Unary(bg, fn.f, out, in))
		xs := values(t, in)
		for i, y := range values(t, out) {
			if y != tensor.Round(tensor.Float32, fn.want(xs[i])) {
				wrong++
			}
		}
		if wrong > 1 {
			t.Errorf("%s: %d of %d float32 results are not the nearest", fn.name, wrong, n)
		}
	}
}

var binaries = []struct {
	f    device.Binary
	want func(a, b float64) float64
}{
	{device.Add, func(a, b float64) float64 { return a + b }},
	{device.Sub, func(a, b float64) float64 { return a - b }},
	{device.Mul, func(a, b float64) float64 { return a * b }},
	{device.Div, func(a, b float64) float64 { return a / b }},
	{device.Maximum, func(a, b float64) float64 {
		if a != a || b != b {
			return math.NaN()
		}
		return math.Max(a, b)
	}},
	{device.Minimum, func(a, b float64) float64 {
		if a != a || b != b {
			return math.NaN()
		}
		return math.Min(a, b)
	}},
	{device.Greater, func(a, b float64) float64 { return where01(a > b) + where01(a == b)/2 }},
	{device.Equal, func(a, b float64) float64 { return where01(a == b) }},
}

// Every function over every mixture of dtypes and layouts, with NaN and infinities among the numbers.
func TestBinary(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(2, 1))
	for _, fn := range binaries {
		for _, od := range floats {
			for _, ad := range floats {
				for _, bd := range floats {
					n := r.IntN(131)
					av, bv := numbers(r, n, -4, 4), numbers(r, n, -4, 4)
					for i := range av {
						switch r.IntN(8) {
						case 0:
							av[i] = tensor.Round(tensor.BFloat16, av[i])
							bv[i] = av[i]
						case 1:
							av[i] = math.NaN()
						case 2:
							bv[i] = math.Inf(r.IntN(2)*2 - 1)
						}
					}
					a, b := laid(t, gaps, ad, av, n), laid(t, shifted, bd, bv, n)
					out := laid(t, gaps, od, nil, n)
					ok(t, d.Binary(bg, fn.f, out, a, b))
					as, bs := values(t, a), values(t, b)
					for i, got := range values(t, out) {
						if want := fn.want(as[i], bs[i]); !near(od, got, want, 0) {
							t.Fatalf("binary %d, %v from %v and %v: of %v and %v is %v, want %v", fn.f, od, ad, bd, as[i], bs[i], got, want)
						}
					}
					outsideIntact(t, "binary", out)
				}
			}
		}
	}
}

func TestWhere(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(3, 1))
	for _, cd := range integers {
		for _, dt := range floats {
			for n := 0; n <= 130; n += 13 {
				cv := make([]float64, n)
				for i := range cv {
					cv[i] = float64(r.IntN(3) - 1)
				}
				a, b := laid(t, dense, dt, numbers(r, n, 0, 1), n), laid(t, gaps, dt, numbers(r, n, 2, 3), n)
				cond, out := laid(t, gaps, cd, cv, n), laid(t, shifted, dt, nil, n)
				ok(t, d.Where(bg, out, cond, a, b))
				as, bs := values(t, a), values(t, b)
				for i, got := range values(t, out) {
					want := as[i]
					if cv[i] == 0 {
						want = bs[i]
					}
					if got != want {
						t.Fatalf("%v: element %d is %v, want %v", dt, i, got, want)
					}
				}
			}
		}
	}
	// An int64 whose low half is 0 is not 0.
	cond := must[*tensor.Tensor](t)(tensor.FromSlice([]int64{1 << 40, math.MinInt64, 0}, 3))
	a, b := laid(t, dense, tensor.Float32, []float64{1, 1, 1}, 3), laid(t, dense, tensor.Float32, []float64{2, 2, 2}, 3)
	out := laid(t, dense, tensor.Float32, nil, 3)
	ok(t, d.Where(bg, out, cond, a, b))
	if v := values(t, out); v[0] != 1 || v[1] != 1 || v[2] != 2 {
		t.Errorf("got %v", v)
	}
}

// How tensors lie in memory changes no bit, for shapes that do and do not fill
// tiles and chunks.
func TestElementwiseLayouts(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(4, 1))
	for _, shape := range [][]int{{}, {1}, {7}, {3, 5}, {2, 3, 4}, {5, 1, 7, 3}, {130, 129}, {3, 700}, {700, 3}, {2, 2, 2, 2, 2, 2, 2, 2}, {40, 30, 20}, {0, 4}} {
		n := product(shape)
		av, bv := numbers(r, n, -4, 4), numbers(r, n, -4, 4)
		for _, dt := range floats {
			want := laid(t, dense, dt, nil, shape...)
			ok(t, d.Binary(bg, device.Sub, want, laid(t, dense, dt, av, shape...), laid(t, dense, dt, bv, shape...)))
			for l := range nLayouts * nLayouts * nLayouts {
				if n > 2000 && l%7 != 3 {
					continue
				}
				a, b := laid(t, l%nLayouts, dt, av, shape...), laid(t, l/nLayouts%nLayouts, dt, bv, shape...)
				out := laid(t, l/nLayouts/nLayouts, dt, nil, shape...)
				version := out.Memory().Version()
				ok(t, d.Binary(bg, device.Sub, out, a, b))
				if out.Memory().Version() == version {
					t.Fatal("the version did not move on")
				}
				sameBits(t, label(shape, dt, l), out, want)
				outsideIntact(t, label(shape, dt, l), out)
			}
		}
	}
}

// Rows that lie side by side, of one dtype and of several, give the bits of those that do not.
func TestElementwiseDTypes(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(4, 3))
	for _, n := range []int{31, 32, 100, 2*grain + 77} {
		av, bv := numbers(r, n, -4, 4), numbers(r, n, -4, 4)
		for _, od := range floats {
			for _, ad := range floats {
				for _, bd := range floats {
					for _, f := range []device.Binary{device.Add, device.Div} {
						got, want := laid(t, dense, od, nil, n), laid(t, gaps, od, nil, n)
						ok(t, d.Binary(bg, f, got, laid(t, dense, ad, av, n), laid(t, dense, bd, bv, n)))
						ok(t, d.Binary(bg, f, want, laid(t, gaps, ad, av, n), laid(t, gaps, bd, bv, n)))
						sameBits(t, fmt.Sprintf("%d of %v and %v as %v", n, ad, bd, od), got, want)
					}
				}
			}
		}
	}
}

// A window that slides over one row: neighbours along both axes share memory.
func TestElementwiseWindows(t *testing.T) {
	d := newDevice(t, 1)
	row := must[*tensor.Tensor](t)(tensor.FromSlice([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9}, 9))
	for _, strides := range [][]int{{1, 1}, {2, 1}, {1, 2}, {3, 1}} {
		x := must[*tensor.Tensor](t)(tensor.NewStrided(row.Memory(), tensor.Float64, []int{3, 3}, strides, 0))
		out := laid(t, dense, tensor.Float64, nil, 3, 3)
		ok(t, d.Unary(bg, device.Unary{Func: device.Neg}, out, x))
		for i, got := range values(t, out) {
			if want := -float64(1 + i/3*strides[0] + i%3*strides[1]); got != want {
				t.Errorf("strides %v: element %d is %v, want %v", strides, i, got, want)
			}
		}
	}
}

func TestElementwiseExpanded(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(4, 2))
	expand := func(x *tensor.Tensor, shape ...int) *tensor.Tensor {
		return must[*tensor.Tensor](t)(x.Expand(shape...))
	}
	for _, dt := range floats {
		shape := []int{6, 50, 70}
		av := numbers(r, product(shape), -4, 4)
		for _, from := range [][]int{{}, {70}, {1, 70}, {50, 1}, {6, 1, 1}, {6, 1, 70}, {6, 50, 1}, {6, 50, 70}} {
			small := laid(t, gaps, dt, numbers(r, product(from), -4, 4), from...)
			b := expand(small, shape...)
			full := laid(t, dense, dt, values(t, b), shape...)
			for l := range nLayouts {
				a := laid(t, l, dt, av, shape...)
				got, want := laid(t, l, dt, nil, shape...), laid(t, dense, dt, nil, shape...)
				ok(t, d.Binary(bg, device.Add, got, a, b))
				ok(t, d.Binary(bg, device.Add, want, a, full))
				sameBits(t, label(from, dt, l), got, want)
				ok(t, d.Binary(bg, device.Sub, got, b, a))
				ok(t, d.Binary(bg, device.Sub, want, full, a))
				sameBits(t, label(from, dt, l), got, want)
			}
		}
	}
}

func TestElementwiseInPlace(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(4, 3))
	shape := []int{130, 131}
	av, bv := numbers(r, 130*131, -4, 4), numbers(r, 130*131, -4, 4)
	for _, dt := range floats {
		for l := range nLayouts {
			a, b, out := laid(t, l, dt, av, shape...), laid(t, dense, dt, bv, shape...), laid(t, dense, dt, nil, shape...)
			ok(t, d.Binary(bg, device.Sub, out, a, b))
			x := laid(t, l, dt, av, shape...)
			ok(t, d.Binary(bg, device.Sub, x, x, b))
			sameBits(t, label("a - b in a", dt, l), x, out)
			x = laid(t, l, dt, bv, shape...)
			ok(t, d.Binary(bg, device.Sub, x, a, x))
			sameBits(t, label("a - b in b", dt, l), x, out)
			ok(t, d.UnaryGrad(bg, device.Unary{Func: device.SiLU}, out, b, a))
			x = laid(t, l, dt, av, shape...)
			ok(t, d.UnaryGrad(bg, device.Unary{Func: device.SiLU}, x, b, x))
			sameBits(t, label("gradient in x", dt, l), x, out)
		}
	}
}

func TestElementwiseRefusals(t *testing.T) {
	d := newDevice(t, 1)
	f32 := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, shape...) }
	x := f32(4)
	ids := laid(t, dense, tensor.Int32, []float64{0, 1, 2, 3}, 4)
	wide := must[*tensor.Tensor](t)(f32(1).Expand(4))
	part := must[*tensor.Tensor](t)(x.Slice(0, 0, 3))
	next := must[*tensor.Tensor](t)(x.Slice(0, 1, 4))
	far := must[*tensor.Tensor](t)(tensor.New(elsewhere{}, tensor.Float32, 4))
	odd := must[*tensor.Tensor](t)(tensor.New(strange{}, tensor.Float32, 4))
	neg, add := device.Unary{Func: device.Neg}, device.Add
	for i, c := range []struct {
		err  error
		want error
	}{
		{d.Unary(bg, neg, nil, x), tensor.ErrMissing},
		{d.Unary(bg, neg, x, nil), tensor.ErrMissing},
		{d.Unary(bg, neg, f32(5), x), tensor.ErrShape},
		{d.Unary(bg, neg, f32(4, 1), x), tensor.ErrShape},
		{d.Unary(bg, neg, ids, x), tensor.ErrDType},
		{d.Unary(bg, neg, x, ids), tensor.ErrDType},
		{d.Unary(bg, neg, wide, x), tensor.ErrAlias},
		{d.Unary(bg, neg, part, next), tensor.ErrAlias},
		{d.Unary(bg, neg, far, x), tensor.ErrDevice},
		{d.Unary(bg, neg, odd, x), tensor.ErrDevice},
		{d.Unary(bg, device.Unary{Func: 200}, x, x), tensor.ErrValue},
		{d.UnaryGrad(bg, neg, x, nil, x), tensor.ErrMissing},
		{d.UnaryGrad(bg, neg, x, f32(5), x), tensor.ErrShape},
		{d.UnaryGrad(bg, neg, x, ids, x), tensor.ErrDType},
		{d.Binary(bg, add, x, x, nil), tensor.ErrMissing},
		{d.Binary(bg, add, x, x, f32(1)), tensor.ErrShape},
		{d.Binary(bg, add, x, ids, x), tensor.ErrDType},
		{d.Binary(bg, 99, x, x, x), tensor.ErrValue},
		{d.Where(bg, x, nil, x, x), tensor.ErrMissing},
		{d.Where(bg, x, x, x, x), tensor.ErrDType},
		{d.Where(bg, x, ids, x, far), tensor.ErrDevice},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("case %d: %v, want a %v error", i, c.err, c.want)
		}
	}
	if v := x.Memory().Version(); v != 0 {
		t.Errorf("a refused call counted as %d writes", v)
	}
}

// elsewhere is memory of another device; strange claims to lie on the host.
type (
	elsewhere struct{ hollow }
	strange   struct{ hollow }
	hollow    struct{}
)

func (elsewhere) Device() tensor.Device { return tensor.NewDevice("ascend", 0) }
func (strange) Device() tensor.Device   { return tensor.CPU }
func (hollow) Size() int                { return 64 }
func (hollow) Version() uint64          { return 0 }
func (hollow) Written()                 {}

func BenchmarkElementwise(b *testing.B) {
	d := newDevice(b, 1)
	const n = 1 << 18
	r := rand.New(rand.NewPCG(1, 1))
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		x, y := laid(b, dense, dt, numbers(r, n, -3, 3), 512, 512), laid(b, dense, dt, numbers(r, n, -3, 3), 512, 512)
		out := laid(b, dense, dt, nil, 512, 512)
		row := must[*tensor.Tensor](b)(laid(b, dense, dt, numbers(r, 512, -3, 3), 512, 1).Expand(512, 512))
		run := func(name string, f func() error) {
			b.Run(label(name, " ", dt), func(b *testing.B) {
				for b.Loop() {
					ok(b, f())
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
		run("add", func() error { return d.Binary(bg, device.Add, out, x, y) })
		run("add row scalars", func() error { return d.Binary(bg, device.Add, out, x, row) })
		run("mul scalar", func() error { return d.Unary(bg, device.Unary{Func: device.MulScalar, A: 3}, out, x) })
		run("relu", func() error { return d.Unary(bg, device.Unary{Func: device.ReLU}, out, x) })
		run("silu", func() error { return d.Unary(bg, device.Unary{Func: device.SiLU}, out, x) })
		run("silu gradient", func() error { return d.UnaryGrad(bg, device.Unary{Func: device.SiLU}, out, y, x) })
	}
}
