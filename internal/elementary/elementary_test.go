package elementary

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

// ulps returns the distance of got from want in units of the last place of
// want.
func ulps(got float64, want *big.Float) float64 {
	w := q2f(want)
	if math.IsNaN(got) || math.IsInf(got, 0) || math.IsInf(w, 0) {
		if got == w {
			return 0
		}
		return inf
	}
	e := want.MantExp(nil) - 53
	if want.Sign() == 0 || e < -1074 {
		e = -1074
	}
	d := bigNew(bigPrec).Sub(bigFloat(bigPrec, got), want)
	d.SetMantExp(d, -e)
	return math.Abs(q2f(d))
}

type span struct{ lo, hi float64 }

type function struct {
	name  string
	f     func(float64) float64
	std   func(float64) float64
	big   func(x *big.Float) *big.Float
	spans []span
	bound float64
}

func bigOf(f func(uint, *big.Float) *big.Float) func(*big.Float) *big.Float {
	return func(x *big.Float) *big.Float { return f(bigPrec, x) }
}

var functions = []function{
	{"Exp", Exp, math.Exp, bigOf(bigExp),
		[]span{{-1, 1}, {-1e-3, 1e-3}, {-30, 30}, {-709, 709.78}, {-745.2, -700}, {0, 1e-16}}, 0.53},
	{"Expm1", Expm1, math.Expm1, bigOf(bigExpm1),
		[]span{{-0.25, 0.25}, {0.25, 1}, {-1, -0.25}, {-40, 80}, {1e-12, 1e-3}, {500, 709.78}, {-1e-310, 1e-310}}, 0.85},
	{"Log", Log, math.Log, bigOf(bigLog),
		[]span{{0.5, 2}, {0.99, 1.01}, {1 - 1e-9, 1 + 1e-9}, {2, 1e5}, {1e-6, 0.5}, {1e-323, 1e-300}, {1e300, 1e308}}, 0.75},
	{"Log1p", Log1p, math.Log1p, bigOf(bigLog1p),
		[]span{{-0.01, 0.01}, {-0.999999, 1}, {1, 1e5}, {1e15, 1e17}, {-1e-12, 1e-12}, {-1, -1 + 1e-9}, {1e-320, 1e-300}}, 0.85},
	{"Sin", Sin, math.Sin, func(x *big.Float) *big.Float { s, _ := bigSinCos(bigPrec, x); return s },
		[]span{{-0.8, 0.8}, {-10, 10}, {-1000, 1000}, {1e5, 2e6}, {1e9, 1e18}, {1e100, 1e308}, {3.1415, 3.1416}, {1e-9, 1e-3}}, 0.9},
	{"Cos", Cos, math.Cos, func(x *big.Float) *big.Float { _, c := bigSinCos(bigPrec, x); return c },
		[]span{{-0.8, 0.8}, {-10, 10}, {-1000, 1000}, {1e5, 2e6}, {1e9, 1e18}, {1e100, 1e308}, {1.5707, 1.5708}, {1e-9, 1e-3}}, 0.9},
	{"Tanh", Tanh, math.Tanh, func(x *big.Float) *big.Float {
		t := bigExpm1(bigPrec, bigNew(bigPrec).SetMantExp(x, 1))
		return t.Quo(t, bigNew(bigPrec).Add(t, bigInt(bigPrec, 2)))
	}, []span{{-1, 1}, {0.9, 3}, {-22, 22}, {1e-10, 1e-2}, {1e-320, 1e-300}}, 2},
	{"Sigmoid", Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, func(x *big.Float) *big.Float {
		e := bigExp(bigPrec, bigNew(bigPrec).Neg(x))
		return bigNew(bigPrec).Quo(bigInt(bigPrec, 1), e.Add(e, bigInt(bigPrec, 1)))
	}, []span{{-1, 1}, {-6, 6}, {-40, 40}, {-745, -1}, {-745.2, -700}}, 2},
	{"Erf", Erf, math.Erf, bigOf(bigErf),
		[]span{{-0.5, 0.5}, {0.45, 2}, {-7, 7}, {1e-10, 1e-3}, {1e-320, 1e-290}}, 1.75},
	{"Erfc", Erfc, math.Erfc, bigOf(bigErfc),
		[]span{{-6, 0}, {-0.5, 0.5}, {0.45, 2}, {2, 6}, {6, 26}, {26, 27.3}}, 3},
	{"NormalCDF", NormalCDF, func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }, func(x *big.Float) *big.Float {
		const p = bigPrec + 64
		root := bigNew(p).Sqrt(bigInt(p, 2))
		v := bigErfc(bigPrec, root.Quo(bigNew(p).Neg(x), root))
		return v.SetMantExp(v, -1)
	}, []span{{-0.5, 0.5}, {-2, 2}, {-9, 9}, {-37, -5}, {-38.6, -37}}, 3.25},
}

// samples returns numbers of the span, half of them spread evenly and half, in
// a span of one sign, by magnitude.
func samples(r *rand.Rand, s span, n int) []float64 {
	out := make([]float64, 0, n+2)
	out = append(out, s.lo, s.hi)
	for i := range n {
		x := s.lo + r.Float64()*(s.hi-s.lo)
		if s.lo > 0 && s.lo < s.hi && i%2 == 0 {
			a, b := math.Float64bits(s.lo), math.Float64bits(s.hi)
			x = math.Float64frombits(a + r.Uint64N(b-a))
		}
		out = append(out, x)
	}
	return out
}

func TestAccuracy(t *testing.T) {
	n := 1500
	if testing.Short() {
		n = 150
	}
	for _, fn := range functions {
		t.Run(fn.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			worst, at := 0.0, 0.0
			for _, s := range fn.spans {
				n := n
				if s.hi > 5 || s.lo < -5 {
					if fn.name == "Erfc" || fn.name == "NormalCDF" {
						n /= 10 // the series is long
					}
				}
				for _, x := range samples(r, s, n) {
					if fn.name[:3] == "Log" && (x == 0 || x == -1) {
						continue
					}
					if d := ulps(fn.f(x), fn.big(bigFloat(bigPrec, x))); d > worst {
						worst, at = d, x
					}
				}
			}
			t.Logf("%s: at most %.3f ulp, at %v", fn.name, worst, at)
			if worst > fn.bound {
				t.Errorf("%s(%v) = %v is off by %.3f ulp, more than %v", fn.name, at, fn.f(at), worst, fn.bound)
			}
		})
	}
}

func bigPow(x, y float64) *big.Float {
	const p = bigPrec + 80
	v := bigLog(p, bigFloat(p, math.Abs(x)))
	return bigExp(bigPrec, v.Mul(v, bigFloat(p, y)))
}

func TestPowAccuracy(t *testing.T) {
	n := 1500
	if testing.Short() {
		n = 150
	}
	r := rand.New(rand.NewPCG(3, 4))
	spans := []struct{ x, y span }{
		{span{0.1, 10}, span{-10, 10}},
		{span{0.9, 1.1}, span{-5000, 5000}},
		{span{0.9999, 1.0001}, span{-7e6, 7e6}},
		{span{1 - 1e-12, 1 + 1e-12}, span{-7e14, 7e14}},
		{span{1e-300, 1e300}, span{-1.03, 1.03}},
		{span{1e-320, 1e-308}, span{-0.95, 1.01}},
		{span{2, 5}, span{-600, 400}},
		{span{10, 10}, span{-324, -300}},
		{span{1e-30, 1e30}, span{-1e-10, 1e-10}},
	}
	worst, atX, atY := 0.0, 0.0, 0.0
	for _, s := range spans {
		xs, ys := samples(r, s.x, n), samples(r, s.y, n)
		for i, x := range xs {
			y := ys[len(ys)-1-i]
			got := Pow(x, y)
			want := bigPow(x, y)
			if d := ulps(got, want); d > worst {
				worst, atX, atY = d, x, y
			}
		}
	}
	for n := range 60 {
		for _, x := range []float64{2, 3, 10, 0.1, 1.5, 7} {
			for _, y := range []float64{float64(n), -float64(n), float64(n) + 0.5} {
				if d := ulps(Pow(x, y), bigPow(x, y)); d > worst {
					worst, atX, atY = d, x, y
				}
				sign := 1.0
				if n%2 == 1 {
					sign = -1
				}
				if y == math.Trunc(y) && Pow(-x, y) != sign*Pow(x, y) {
					t.Errorf("Pow(%v, %v) = %v", -x, y, Pow(-x, y))
				}
			}
		}
	}
	t.Logf("Pow: at most %.3f ulp, at %v, %v", worst, atX, atY)
	if worst > 0.55 {
		t.Errorf("Pow(%v, %v) is off by %.3f ulp", atX, atY, worst)
	}
}

// TestReduction tries numbers close to multiples of pi/2.
func TestReduction(t *testing.T) {
	check := func(x float64) {
		s, c := bigSinCos(bigPrec, bigFloat(bigPrec, x))
		if d := ulps(Sin(x), s); d > 0.9 {
			t.Errorf("Sin(%x) is off by %v ulp", x, d)
		}
		if d := ulps(Cos(x), c); d > 0.9 {
			t.Errorf("Cos(%x) is off by %v ulp", x, d)
		}
	}
	half := bigNew(1300).SetMantExp(bigPi(1300), -1)
	for n := int64(1); n < 1<<21; n += 1 + n/40 {
		x := q2f(bigNew(200).Mul(half, bigInt(200, n)))
		for _, v := range []float64{x, math.Nextafter(x, 0), math.Nextafter(x, inf), -x} {
			check(v)
		}
	}
	for e := 20; e < 1024; e += 7 {
		for _, m := range []float64{1, 1.25, 1.9999999, 1 + 0x1p-52} {
			check(math.Ldexp(m, e))
			check(-math.Ldexp(m, e))
		}
	}
	check(0x1p20)
	check(math.Nextafter(0x1p20, inf))
	check(math.MaxFloat64)
	// A double unusually close to a multiple of pi/2.
	check(0x1.6ac5b262ca1ffp+849)
	check(0x1.921fb54442d18p+0)
	check(0x1.1475cc9eedfp+17)
}

var specials = []float64{
	0, math.Copysign(0, -1), 5e-324, -5e-324, 1e-310, -1e-310, 0x1p-1022, -0x1p-1022,
	1e-300, -1e-300, 1e-20, -1e-20, 1e-8, 0.25, -0.25, 0.375, -0.375, 0.5, -0.5, 1, -1,
	math.Nextafter(1, 0), math.Nextafter(1, 2), -math.Nextafter(1, 0), -math.Nextafter(1, 2),
	1.5, -1.5, 2, -2, 3, -3, 6, -6, 20, -20, 27, -27, 40, -40, 512, -512, 600, -600,
	709.782712893384, 709.7827128933841, 710, 745, -708.4, -745, -745.1332191019411,
	-745.1332191019412, -746, 1025, -1025, 1e5, -1e5, 1e10, -1e10, 0x1p52, 0x1p53,
	0x1p53 - 1, -0x1p53 + 1, 0x1p63, -0x1p63, 0x1p64, 1e22, 1e300, -1e300,
	math.MaxFloat64, -math.MaxFloat64, inf, -inf, nan,
}

// near reports whether two results mean the same: both NaN, or of one sign and
// close.
func near(a, b, tolerance float64) bool {
	if a != a || b != b {
		return a != a && b != b
	}
	if a == b {
		return math.Signbit(a) == math.Signbit(b)
	}
	if math.IsInf(a, 0) || math.IsInf(b, 0) {
		return false
	}
	return math.Abs(a-b) <= tolerance*math.Abs(b)+2e-323
}

// finite reports whether all of v are finite and not zero. Where they are and
// package math, which is itself off by many units for some subnormal arguments
// and near the overflow, disagrees, the evaluation by math/big decides.
func finite(v ...float64) bool {
	for _, x := range v {
		if x == 0 || math.IsInf(x, 0) || x != x {
			return false
		}
	}
	return true
}

func TestSpecialValues(t *testing.T) {
	for _, fn := range functions {
		for _, x := range specials {
			got, want := fn.f(x), fn.std(x)
			tolerance := 1e-14
			if fn.name == "NormalCDF" {
				tolerance = 1e-12
			}
			if (fn.name == "Sin" || fn.name == "Cos") && x != 0 {
				// Only the range is known of results near a zero.
				if !(math.Abs(got-want) <= 1e-15) && !(got != got && want != want) {
					t.Errorf("%s(%v) = %v, want %v", fn.name, x, got, want)
				}
				continue
			}
			if !near(got, want, tolerance) && !(finite(got, x) && ulps(got, fn.big(bigFloat(bigPrec, x))) <= fn.bound) {
				t.Errorf("%s(%v) = %v, want %v", fn.name, x, got, want)
			}
			if got != got && math.Float64bits(got) != math.Float64bits(math.NaN()) {
				t.Errorf("%s(%v) is another NaN: %x", fn.name, x, math.Float64bits(got))
			}
		}
	}
	for _, x := range specials {
		for _, y := range specials {
			got, want := Pow(x, y), math.Pow(x, y)
			if !near(got, want, 1e-12) && !(finite(got, x, y) && ulps(math.Abs(got), bigPow(x, y)) < 0.55) {
				t.Errorf("Pow(%v, %v) = %v, want %v", x, y, got, want)
			}
			if got != got && math.Float64bits(got) != math.Float64bits(math.NaN()) {
				t.Errorf("Pow(%v, %v) is another NaN: %x", x, y, math.Float64bits(got))
			}
		}
	}
}

// TestAgainstMath walks dense grids next to the functions of package math.
func TestAgainstMath(t *testing.T) {
	for _, fn := range functions {
		r := rand.New(rand.NewPCG(5, 6))
		for _, s := range fn.spans {
			for _, x := range samples(r, s, 20000) {
				got, want := fn.f(x), fn.std(x)
				tolerance := 4e-15
				switch fn.name {
				case "NormalCDF":
					tolerance = 3e-13
				case "Sin", "Cos":
					if math.Abs(got-want) < 1e-15 {
						continue
					}
				}
				if !near(got, want, tolerance) && !(finite(got, x) && ulps(got, fn.big(bigFloat(bigPrec, x))) <= fn.bound) {
					t.Fatalf("%s(%v) = %v, want %v", fn.name, x, got, want)
				}
			}
		}
	}
}

// TestMonotonic walks across the places where the method changes and expects
// no step back of more than the error allowed.
func TestMonotonic(t *testing.T) {
	edges := []float64{0.25, 0.375, 0.5, 1, 2, 4, 6, 8, 16, 20, 1 - 0x1p-8, 1 + 0x1p-7, 0x1p-7, 0x1p-8, 0x1p-28, 0x1p-54, math.Ln2, math.Ln2 / 2}
	for _, fn := range functions {
		direction := 1.0
		switch fn.name {
		case "Sin", "Cos":
			continue
		case "Erfc":
			direction = -1
		}
		for _, edge := range edges {
			for _, sign := range []float64{1, -1} {
				if fn.name == "Log" && sign < 0 || fn.name == "Log1p" && sign*edge < -0.999 {
					continue
				}
				x := sign * edge
				for range 200 {
					x = math.Nextafter(x, -inf)
				}
				last := fn.f(x)
				for range 400 {
					x = math.Nextafter(x, inf)
					y := fn.f(x)
					if step := (y - last) * direction; step < 0 && -step > 2.1*(math.Nextafter(math.Abs(y), inf)-math.Abs(y)) {
						t.Errorf("%s falls from %v to %v at %v", fn.name, last, y, x)
					}
					last = y
				}
			}
		}
	}
}

// resultBits is the digest of the result bits over the inputs of TestBits. It
// is the same on every machine, and changes only with the functions themselves.
const resultBits = "f98ec6fc85bf3040ebce255fe4ef9dd2e8bc88b293dfe0c027b4e906d2c51450"

func TestBits(t *testing.T) {
	h := sha256.New()
	var buf [8]byte
	add := func(y float64) {
		binary.LittleEndian.PutUint64(buf[:], math.Float64bits(y))
		h.Write(buf[:])
	}
	// Inputs from integers only, so that they are the same everywhere too.
	state := uint64(12345)
	next := func() uint64 {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return state
	}
	input := func(exponents, from uint64) float64 {
		v := next()
		return math.Float64frombits(v&(1<<63|1<<52-1) | (from+next()%exponents)<<52)
	}
	for _, fn := range functions {
		for _, x := range specials {
			add(fn.f(x))
		}
		for range 20000 {
			add(fn.f(input(14, 1020)))
			add(fn.f(input(50, 990)))
			add(fn.f(input(2048, 0)))
		}
	}
	for _, x := range specials {
		for _, y := range specials {
			add(Pow(x, y))
		}
	}
	for range 40000 {
		add(Pow(math.Abs(input(20, 1013)), input(12, 1018)))
		add(Pow(math.Abs(input(2000, 0)), input(12, 1013)))
		add(Pow(input(2048, 0), input(2048, 0)))
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != resultBits {
		t.Errorf("digest of the result bits is %s, want %s", got, resultBits)
	}
}

var sink float64

func BenchmarkFunctions(b *testing.B) {
	args := make([]float64, 1024)
	r := rand.New(rand.NewPCG(7, 8))
	for _, fn := range functions {
		for i := range args {
			args[i] = r.Float64()*8 - 4
			if fn.name[:3] == "Log" {
				args[i] += 4.001
			}
		}
		for _, which := range []struct {
			name string
			f    func(float64) float64
		}{{"elementary", fn.f}, {"math", fn.std}} {
			b.Run(fn.name+"/"+which.name, func(b *testing.B) {
				s := 0.0
				for i := range b.N {
					s += which.f(args[i%1024])
				}
				sink = s
			})
		}
	}
	b.Run("Pow/elementary", func(b *testing.B) {
		s := 0.0
		for i := range b.N {
			s += Pow(args[i%1024]+5, 2.3)
		}
		sink = s
	})
	b.Run("Pow/math", func(b *testing.B) {
		s := 0.0
		for i := range b.N {
			s += math.Pow(args[i%1024]+5, 2.3)
		}
		sink = s
	})
	b.Run("Sin/large", func(b *testing.B) {
		s := 0.0
		for i := range b.N {
			s += Sin(args[i%1024] * 1e200)
		}
		sink = s
	})
}
