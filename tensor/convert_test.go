package tensor

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// format is a 16-bit floating-point format, described apart from the code under test.
type format struct {
	name       string
	mantissa   int     // stored bits
	bias       int     // of the exponent
	infinity   uint16  // bits of +Inf
	overflow   float64 // the least number that rounds to +Inf
	from64     func(float64) uint16
	from32     func(float32) uint16
	to32       func(uint16) float32
	dtype      DType
	quiet      uint16 // the bit of a quiet NaN
	leastValue float64
}

var formats = []format{
	{"float16", 10, 15, 0x7c00, 65520, Float16FromFloat64, Float16FromFloat32, Float16ToFloat32, Float16, 0x200, 0x1p-24},
	{"bfloat16", 7, 127, 0x7f80, 0x1.ffp127, BFloat16FromFloat64, BFloat16FromFloat32, BFloat16ToFloat32, BFloat16, 0x40, 0x1p-133},
}

// value is the number that bits stand for, by the definition of the format.
func (f format) value(bits uint16) float64 {
	m := float64(bits & (1<<f.mantissa - 1))
	e := int(bits&0x7fff) >> f.mantissa
	x := math.Ldexp(m, 1-f.bias-f.mantissa)
	if e > 0 {
		x = math.Ldexp(m+float64(int(1)<<f.mantissa), e-f.bias-f.mantissa)
	}
	return math.Copysign(x, map[bool]float64{false: 1, true: -1}[bits&0x8000 != 0])
}

func isNaN(f format, bits uint16) bool { return bits&0x7fff > f.infinity }

func TestEvery16BitPatternRoundTrips(t *testing.T) {
	for _, f := range formats {
		nans := 0
		for i := range 1 << 16 {
			bits := uint16(i)
			wide := f.to32(bits)
			if isNaN(f, bits) {
				nans++
				if wide == wide {
					t.Fatalf("%s %04x widens to %v", f.name, bits, wide)
				}
				// A signalling NaN comes back quiet, a quiet one as it was.
				for _, back := range []uint16{f.from32(wide), f.from64(float64(wide))} {
					if back != bits|f.quiet {
						t.Fatalf("%s NaN %04x comes back as %04x", f.name, bits, back)
					}
				}
				continue
			}
			want := f.value(bits)
			if bits&0x7fff == f.infinity {
				want = math.Inf(1 - int(bits>>15)*2)
			}
			if math.Float64bits(float64(wide)) != math.Float64bits(want) {
				t.Fatalf("%s %04x widens to %v, want %v", f.name, bits, wide, want)
			}
			if got := f.from32(wide); got != bits {
				t.Fatalf("%s %04x comes back as %04x", f.name, bits, got)
			}
			if got := f.from64(want); got != bits {
				t.Fatalf("%s %04x comes back from float64 as %04x", f.name, bits, got)
			}
		}
		if want := 2 * (1<<f.mantissa - 1); nans != want {
			t.Errorf("%s has %d NaNs, want %d", f.name, nans, want)
		}
	}
}

// Between every two neighbours: the tie goes to the even one, and the float64
// next to the tie on either side goes to its side. A conversion that rounds to
// float32 first takes the latter for ties.
func TestRoundsOnceToNearestEven(t *testing.T) {
	doubleRounded := 0
	for _, f := range formats {
		for i := range int(f.infinity) {
			low, high := uint16(i), uint16(i)+1
			a := f.value(low)
			b := f.value(high)
			if high == f.infinity {
				b = a + (a - f.value(low-1))
			}
			tie := a + (b-a)/2 // exact
			even := low + low&1
			for _, c := range []struct {
				x    float64
				want uint16
			}{
				{tie, even},
				{math.Nextafter(tie, 0), low},
				{math.Nextafter(tie, math.Inf(1)), high},
				{math.Nextafter(a, math.Inf(1)), low},
				{math.Nextafter(b, 0), high},
			} {
				if got := f.from64(c.x); got != c.want {
					t.Fatalf("%s of %x is %04x, want %04x", f.name, c.x, got, c.want)
				}
				if got := f.from64(-c.x); got != c.want|0x8000 {
					t.Fatalf("%s of %x is %04x, want %04x", f.name, -c.x, got, c.want|0x8000)
				}
				if f.from32(float32(c.x)) != c.want {
					doubleRounded++
				}
				if float64(float32(c.x)) == c.x && f.from32(float32(c.x)) != c.want {
					t.Fatalf("%s of the float32 %x is %04x, want %04x", f.name, c.x, f.from32(float32(c.x)), c.want)
				}
			}
			// The same with the float32 neighbours of a tie.
			if s := float32(tie); float64(s) == tie && tie > 0 {
				if got := f.from32(math.Nextafter32(s, 0)); got != low {
					t.Fatalf("%s just below %x is %04x, want %04x", f.name, tie, got, low)
				}
				if got := f.from32(math.Nextafter32(s, math.MaxFloat32)); got != high {
					t.Fatalf("%s just above %x is %04x, want %04x", f.name, tie, got, high)
				}
			}
		}
	}
	if doubleRounded == 0 {
		t.Error("no case of this test tells one rounding from two")
	}
}

// nearest rounds by exact arithmetic: among all patterns by bisection, then by
// comparing distances as rational numbers.
func nearest(f format, x float64) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	if x >= f.overflow {
		return sign | f.infinity
	}
	lo, hi := uint16(0), f.infinity // value(lo) <= x < value(hi), taking Inf as the next power of two
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; f.value(mid) <= x {
			lo = mid
		} else {
			hi = mid
		}
	}
	rat := func(x float64) *big.Rat { return new(big.Rat).SetFloat64(x) }
	below := new(big.Rat).Sub(rat(x), rat(f.value(lo)))
	above := new(big.Rat).Sub(rat(f.value(hi)), rat(x))
	switch c := below.Cmp(above); {
	case c > 0, c == 0 && lo&1 == 1:
		return sign | hi
	}
	return sign | lo
}

func TestConversionsAgainstExactArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		for range 20000 {
			e := r.IntN(2*f.bias+40) - f.bias - 30
			x := math.Ldexp(1+r.Float64(), e)
			if r.IntN(2) == 0 {
				x = -x
			}
			if got, want := f.from64(x), nearest(f, x); got != want {
				t.Fatalf("%s of %x is %04x, want %04x", f.name, x, got, want)
			}
			s := float32(x)
			if got, want := f.from32(s), nearest(f, float64(s)); got != want {
				t.Fatalf("%s of float32 %x is %04x, want %04x", f.name, s, got, want)
			}
			if got, want := Round(f.dtype, x), f.value(nearest(f, x)); got != want && !math.IsInf(got, 0) {
				t.Fatalf("Round(%s, %x) is %x, want %x", f.name, x, got, want)
			}
		}
		for _, x := range []float64{math.Inf(1), math.MaxFloat64, 1e300, f.overflow, math.MaxFloat32 * 2} {
			if f.from64(x) != f.infinity || f.from64(-x) != f.infinity|0x8000 {
				t.Errorf("%s of %v is no infinity", f.name, x)
			}
			if !math.IsInf(Round(f.dtype, x), 1) {
				t.Errorf("Round(%s, %v) is no infinity", f.name, x)
			}
		}
		for _, x := range []float64{0, 5e-324, 1e-300, f.leastValue / 2, f.leastValue / 4} {
			if f.from64(x) != 0 || f.from64(-x) != 0x8000 {
				t.Errorf("%s of %v is %04x, %04x", f.name, x, f.from64(x), f.from64(-x))
			}
		}
		if got := f.from64(math.Nextafter(f.leastValue/2, 1)); got != 1 {
			t.Errorf("%s of just over half of the least value is %04x", f.name, got)
		}
		if !math.IsNaN(Round(f.dtype, math.NaN())) {
			t.Errorf("Round(%s, NaN) is a number", f.name)
		}
	}
}

// Numbers that two roundings get wrong, worked out by hand.
func TestDoubleRounding(t *testing.T) {
	tests := []struct {
		f    format
		x    float64
		want uint16
	}{
		// Above the tie of 1 and 1+2^-10 by less than float32 can see.
		{formats[0], 1 + 0x1p-11 + 0x1p-40, 0x3c01},
		{formats[0], 1 + 0x1p-10 + 0x1p-11 - 0x1p-40, 0x3c01},
		{formats[0], -(1 + 0x1p-11 + 0x1p-40), 0xbc01},
		{formats[0], 0x1p-25 + 0x1p-60, 0x0001},
		{formats[0], 65520 - 0x1p-20, 0x7bff},
		{formats[1], 1 + 0x1p-8 + 0x1p-40, 0x3f81},
		{formats[1], 1 + 0x1p-7 + 0x1p-8 - 0x1p-40, 0x3f81},
		{formats[1], 0x1p-134 + 0x1p-180, 0x0001},
		{formats[1], 0x1.ffp127 - 0x1p80, 0x7f7f},
	}
	for _, c := range tests {
		if got := c.f.from64(c.x); got != c.want {
			t.Errorf("%s of %x is %04x, want %04x", c.f.name, c.x, got, c.want)
		}
		if twice := c.f.from32(float32(c.x)); twice == c.want {
			t.Errorf("%s of %x: two roundings give the same, the case shows nothing", c.f.name, c.x)
		}
	}
}

// Next to a tie of subnormal numbers, by less than float32 resolves, on either side.
func TestTiesOfSubnormals(t *testing.T) {
	for i, tie := range []float64{0x1p-25, 0x1p-134} { // between 0 and the smallest number
		f, ulp32 := formats[i], math.Max(tie*0x1p-23, 0x1p-149)
		for _, off := range []float64{0.1, 0.3, 0.5, 0.9, 1, 1.1, 1.9} {
			for _, sign := range []float64{1, -1} {
				want := uint16(0)
				if sign > 0 {
					want = 1
				}
				if got := f.from64(tie + sign*off*ulp32); got != want {
					t.Errorf("%s: %v units beside the tie gives %04x, want %04x", f.name, sign*off, got, want)
				}
			}
		}
	}
}

// The table of float32 patterns that careless conversions get wrong.
func TestBFloat16Table(t *testing.T) {
	for bits, want := range map[uint32]uint16{
		0x7f7fffff: 0x7f80, 0xff7fffff: 0xff80, // the largest finite number
		0x7f7f7fff: 0x7f7f, 0x7f7f8000: 0x7f80,
		0x3f808000: 0x3f80, 0x3f818000: 0x3f82, // ties to even
		0x3f808001: 0x3f81, 0x3f807fff: 0x3f80,
		0x00008001: 0x0001, 0x00008000: 0x0000, 0x80018000: 0x8002, // subnormals
		0x00000000: 0x0000, 0x80000000: 0x8000,
		0x7f800000: 0x7f80, 0xff800000: 0xff80,
	} {
		if got := BFloat16FromFloat32(math.Float32frombits(bits)); got != want {
			t.Errorf("%08x becomes %04x, want %04x", bits, got, want)
		}
	}
	for _, bits := range []uint32{0x7fffffff, 0x7f800001, 0xffffffff, 0xff800001, 0x7fc00000, 0x7f80ffff} {
		got := BFloat16FromFloat32(math.Float32frombits(bits))
		if !isNaN(formats[1], got) || got&0x40 == 0 || got>>15 != uint16(bits>>31) {
			t.Errorf("NaN %08x becomes %04x, want a quiet NaN of its sign", bits, got)
		}
	}
}

func TestFloat16Table(t *testing.T) {
	for x, want := range map[float32]uint16{
		65519.99: 0x7bff, 65504: 0x7bff, 65520: 0x7c00, -65520: 0xfc00, math.MaxFloat32: 0x7c00,
		0x1p-25: 0, 0x1.000002p-25: 1, 0x1.8p-24: 2, 0x1p-24: 1, 0x1p-14: 0x0400, 0x1.ff8p-15: 0x03ff,
		1: 0x3c00, -2: 0xc000, 0: 0,
	} {
		if got := Float16FromFloat32(x); got != want {
			t.Errorf("%v becomes %04x, want %04x", x, got, want)
		}
	}
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fa00000, 0x7fffffff, 0x7fc00000} {
		got := Float16FromFloat32(math.Float32frombits(bits))
		if !isNaN(formats[0], got) || got&0x200 == 0 || got>>15 != uint16(bits>>31) {
			t.Errorf("NaN %08x becomes %04x, want a quiet NaN of its sign", bits, got)
		}
	}
}

func TestRoundOfOtherTypes(t *testing.T) {
	for _, c := range []struct {
		d       DType
		x, want float64
	}{
		{Float64, 0.1, 0.1}, {Float32, 0.1, 0x1.99999ap-4}, {Float32, 0x1p-150, 0}, {Float32, 1e39, math.Inf(1)},
		{Int32, -2.9, -2}, {Int64, 2.9, 2}, {0, 0.1, 0.1},
	} {
		if got := Round(c.d, c.x); got != c.want {
			t.Errorf("Round(%v, %v) is %v, want %v", c.d, c.x, got, c.want)
		}
	}
}
