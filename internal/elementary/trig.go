package elementary

import (
	"math"
	"math/bits"
)

// Parts of pi/2. The first three have 33 bits at most and are followed by what
// is left, so that products of them with integers below 2**20 are exact.
const (
	halfPi1     = 0x1.921fb544p+0
	halfPi2     = 0x1.0b4611a6p-34
	halfPi3     = 0x1.3198a2ep-69
	halfPi2Rest = math.Pi/2 - halfPi1 - halfPi2
	halfPi3Rest = 0x1.b839a252049c1p-104

	halfPiHi = 0x1.921fb54442d18p+0
	halfPiLo = 0x1.1a62633145c07p-54
)

// Sin returns the sine of x radians.
func Sin(x float64) float64 {
	a := math.Abs(x)
	if a < math.Pi/4 {
		if a < 0x1p-27 {
			return x
		}
		return sinKernel(x, 0)
	}
	if !(a <= math.MaxFloat64) {
		return math.NaN()
	}
	n, r, rl := reduceHalfPi(x)
	return quadrant(n, r, rl)
}

// Cos returns the cosine of x radians.
func Cos(x float64) float64 {
	a := math.Abs(x)
	if a < math.Pi/4 {
		return cosKernel(x, 0)
	}
	if !(a <= math.MaxFloat64) {
		return math.NaN()
	}
	n, r, rl := reduceHalfPi(x)
	return quadrant(n+1, r, rl)
}

// quadrant returns the sine of n*pi/2 + r + rl.
func quadrant(n uint64, r, rl float64) float64 {
	var y float64
	if n&1 == 0 {
		y = sinKernel(r, rl)
	} else {
		y = cosKernel(r, rl)
	}
	return math.Float64frombits(math.Float64bits(y) ^ n>>1<<63)
}

// sinKernel returns the sine of r+rl for |r| up to a little over pi/4.
func sinKernel(r, rl float64) float64 {
	z := float64(r * r)
	z2 := float64(z * z)
	p := float64(z*(1.0/120)) - 1.0/6 +
		float64(z2*(float64(z*(1.0/362880))-1.0/5040)) +
		float64(float64(z2*z2)*(float64(z*(1.0/6227020800))-1.0/39916800+
			float64(z2*(float64(z*(1.0/355687428096000))-1.0/1307674368000))))
	return r + (float64(float64(r*z)*p) + (rl - float64(float64(z*0.5)*rl)))
}

// cosKernel returns the cosine of r+rl for |r| up to a little over pi/4.
func cosKernel(r, rl float64) float64 {
	z := float64(r * r)
	z2 := float64(z * z)
	p := 1.0/24 - float64(z*(1.0/720)) +
		float64(z2*(1.0/40320-float64(z*(1.0/3628800)))) +
		float64(float64(z2*z2)*(1.0/479001600-float64(z*(1.0/87178291200))+float64(z2*(1.0/20922789888000))))
	h := float64(z * 0.5)
	w := 1 - h
	return w + (1 - w - h + (float64(z2*p) - float64(r*rl)))
}

// reduceHalfPi returns n modulo 4 (in the low bits) and r+rl such that x is
// n*pi/2 + r + rl, with r at most about pi/4 in size.
func reduceHalfPi(x float64) (n uint64, r, rl float64) {
	if math.Abs(x) > 0x1p20 {
		return reduceLarge(x)
	}
	kd := float64(x*(2/math.Pi)) + roundShift
	n = math.Float64bits(kd)
	kd -= roundShift
	a, e := twoSum(x-float64(kd*halfPi1), -float64(kd*halfPi2))
	if math.Abs(a) > 0x1p-20 {
		e -= float64(kd * halfPi2Rest)
	} else {
		// Close to a multiple of pi/2, and more of its digits count.
		var e2 float64
		a, e2 = twoSum(a, -float64(kd*halfPi3))
		e += e2 - float64(kd*halfPi3Rest)
	}
	r = a + e
	return n, r, a - r + e
}

// reduceLarge is reduceHalfPi for every finite |x| from 2**20. It multiplies
// the mantissa with as many digits of 2/pi as matter.
func reduceLarge(x float64) (n uint64, r, rl float64) {
	b := math.Float64bits(x)
	m := b&(1<<52-1) | 1<<52
	// The digits of 2/pi before this place only make multiples of four.
	at := uint(b>>52&0x7ff) - 1075 + 62
	word, shift := at/64, at%64
	digits := func(i uint) uint64 {
		return twoOverPi[word+i]<<shift | twoOverPi[word+i+1]>>1>>(63-shift)
	}
	// The low 192 bits of the product, in quarters of 2**192.
	h2, l2 := bits.Mul64(m, digits(2))
	h1, l1 := bits.Mul64(m, digits(1))
	f0 := m * digits(0)
	f1, carry := bits.Add64(l1, h2, 0)
	f0, _ = bits.Add64(f0, h1, carry)
	f2 := l2

	n = f0 >> 62
	f0, f1, f2 = f0<<2|f1>>62, f1<<2|f2>>62, f2<<2
	negative := b>>63 != 0
	if f0>>63 != 0 {
		// A fraction from one half is taken from the next integer.
		n++
		var borrow uint64
		f2, borrow = bits.Sub64(0, f2, 0)
		f1, borrow = bits.Sub64(0, f1, borrow)
		f0, _ = bits.Sub64(0, f0, borrow)
		negative = !negative
	}
	if b>>63 != 0 {
		n = -n
	}

	exponent := uint64(1023)
	for f0>>63 == 0 {
		lz := uint(bits.LeadingZeros64(f0))
		if lz == 64 {
			f0, f1, f2 = f1, f2, 0
		} else {
			f0 = f0<<lz | f1>>(64-lz)
			f1 = f1<<lz | f2>>(64-lz)
			f2 <<= lz
		}
		exponent -= uint64(lz)
	}
	scale := math.Float64frombits(exponent << 52)
	// Two numbers of 53 bits each, with exact conversions.
	hi := float64(float64(int64(f0>>11)) * 0x1p-53)
	lo := float64(float64(int64(f0&(1<<11-1)<<42|f1>>22)) * 0x1p-106)

	// (hi+lo) * pi/2, the leading product by halves.
	ht := math.Float64frombits(math.Float64bits(hi) &^ lowHalf)
	const pt = 0x1.921fb5p+0
	const pb = halfPiHi - pt
	hb := hi - ht
	p := float64(hi * halfPiHi)
	e := float64(ht*pt) - p + float64(ht*pb) + float64(hb*pt) + float64(hb*pb)
	e += float64(hi*halfPiLo) + float64(lo*halfPiHi)
	r = p + e
	rl = p - r + e
	if negative {
		scale = -scale
	}
	return n, float64(r * scale), float64(rl * scale)
}
