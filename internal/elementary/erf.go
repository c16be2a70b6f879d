package elementary

import "math"

const (
	erfcxFirst = 0x3fd0 // the leading 16 bits of 1/4
	erfcxParts = 108    // up to 28
	erfcxTerms = 10

	twoOverSqrtPi = 2 / math.SqrtPi
)

// erfcx returns exp(x*x)*erfc(x) for x from 1/4 to 28.
func erfcx(x float64) float64 {
	b := math.Float64bits(x)
	p := &erfcxTable[(b>>48-erfcxFirst)%128%erfcxParts]
	d := x - math.Float64frombits(b>>48<<48|1<<47)
	s := float64(d * d)
	s2 := float64(s * s)
	q := mad(p[9], d, p[8])
	q = mad(q, s, mad(p[7], d, p[6]))
	q = mad(q, s2, mad(mad(p[5], d, p[4]), s, mad(p[3], d, p[2])))
	return mad(q, s, float64(p[1]*d)) + p[0]
}

// expSquare returns y * exp(-x*x*c) for c 1 or 1/2, x from 1/4 up to where the
// result vanishes.
func expSquare(x, c, y float64) float64 {
	top := math.Float64frombits(math.Float64bits(x) &^ lowHalf)
	hi := float64(-c * float64(top*top))
	lo := float64(-c * float64((x-top)*(x+top)))
	bits, t := expParts(hi, lo)
	if hi > -690 {
		s := math.Float64frombits(bits)
		return float64(y * (s + float64(s*t)))
	}
	s := math.Float64frombits(bits + 512<<52)
	return float64(0x1p-512 * float64(y*(s+float64(s*t))))
}

// erfSmall returns p such that erf(x) = x + x*p, for |x| up to about 1/2.
func erfSmall(x float64) float64 {
	const c = twoOverSqrtPi
	z := float64(x * x)
	p := c / (479001600 * 25)
	p = mad(p, z, -c/(39916800*23))
	p = mad(p, z, c/(3628800*21))
	p = mad(p, z, -c/(362880*19))
	p = mad(p, z, c/(40320*17))
	p = mad(p, z, -c/(5040*15))
	p = mad(p, z, c/(720*13))
	p = mad(p, z, -c/(120*11))
	p = mad(p, z, c/(24*9))
	p = mad(p, z, -c/(6*7))
	p = mad(p, z, c/(2*5))
	p = mad(p, z, -c/3)
	return mad(p, z, c-1)
}

// Erf returns the error function of x.
func Erf(x float64) float64 {
	a := math.Abs(x)
	switch {
	case a < 0.5:
		if a < 0x1p-960 {
			// Keep the small product out of the subnormal range.
			x = float64(x * 0x1p80)
			return float64(0x1p-80 * (x + float64(x*(twoOverSqrtPi-1))))
		}
		return x + float64(x*erfSmall(x))
	case a < 6:
		return math.Copysign(1-expSquare(a, 1, erfcx(a)), x)
	case x != x:
		return math.NaN()
	}
	return math.Copysign(1, x)
}

// Erfc returns 1 - Erf(x), accurately for large x.
func Erfc(x float64) float64 {
	switch {
	case x < 0.25:
		switch {
		case x > -0.5:
			return 1 - (x + float64(x*erfSmall(x)))
		case x > -6:
			return 2 - expSquare(-x, 1, erfcx(-x))
		}
		return 2
	case x < 0.5:
		return 0.5 - (x - 0.5 + float64(x*erfSmall(x)))
	case x < 27.5:
		return expSquare(x, 1, erfcx(x))
	case x != x:
		return math.NaN()
	}
	return 0
}

// NormalCDF returns the standard normal distribution function of x, accurately
// in the lower tail.
func NormalCDF(x float64) float64 {
	a := math.Abs(x)
	switch {
	case a < 0.375:
		z := float64(x * (math.Sqrt2 / 2))
		return 0.5 + float64(0.5*(z+float64(z*erfSmall(z))))
	case a < 38.75:
		q := expSquare(a, 0.5, float64(0.5*erfcx(float64(a*(math.Sqrt2/2)))))
		if x < 0 {
			return q
		}
		return 1 - q
	case x != x:
		return math.NaN()
	case x < 0:
		return 0
	}
	return 1
}
