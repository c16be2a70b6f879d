package elementary

import "math"

const (
	// roundShift added to a number below 2**51 in size rounds it to an
	// integer, left in the low bits of the sum.
	roundShift = 0x1.8p52

	// ln2ExpHi is short enough for exact products with 18-bit integers.
	ln2ExpHi = 0x1.62e42fef8p-1
	ln2ExpLo = math.Ln2 - ln2ExpHi

	expOverflow  = 0x1.62e42fefa39efp+9  // largest x with finite e**x
	expUnderflow = -0x1.74910d52d3051p+9 // smallest x with e**x above zero

	lowHalf = 1<<27 - 1 // the mantissa bits below the leading 26
)

type expEntry struct {
	bits uint64
	tail float64
}

// expParts returns bits and t such that e**(x+lo) is the number with these
// bits times 1+t, with t below 1/128 in size. The exponent field of bits may
// have wrapped for |x| above 700. The size of x must be below 2**10, and lo
// must be small against 1/128.
func expParts(x, lo float64) (bits uint64, t float64) {
	kd := float64(x*(128/math.Ln2)) + roundShift
	k := math.Float64bits(kd)
	kd -= roundShift
	r := x - float64(kd*(ln2ExpHi/128)) - float64(kd*(ln2ExpLo/128)) + lo
	e := &expTable[k%128]
	s := float64(r * r)
	q := float64(s*(0.5+float64(r*(1.0/6)))) + float64(float64(s*s)*(1.0/24+float64(r*(1.0/120))))
	return e.bits + k>>7<<52, e.tail + r + q
}

// Exp returns e**x.
func Exp(x float64) float64 {
	if math.Float64bits(x)>>52&0x7ff-0x3c9 >= 0x408-0x3c9 {
		return expEdge(x)
	}
	bits, t := expParts(x, 0)
	s := math.Float64frombits(bits)
	return s + float64(s*t)
}

// expEdge is Exp for |x| below 2**-54 and from 512.
func expEdge(x float64) float64 {
	switch {
	case x != x:
		return math.NaN()
	case x > expOverflow:
		return math.Inf(1)
	case x < expUnderflow:
		return 0
	case x < 1 && x > -1:
		return 1 + x
	}
	bits, t := expParts(x, 0)
	return expScale(bits, t, x > 0)
}

// expScale returns the number with the given bits times 1+t, for results near
// or over the ends of the exponent range.
func expScale(bits uint64, t float64, large bool) float64 {
	if large {
		s := math.Float64frombits(bits - 1000<<52)
		return float64(0x1p1000 * (s + float64(s*t)))
	}
	s := math.Float64frombits(bits + 1022<<52)
	u := float64(s * t)
	y := s + u
	if y < 1 {
		// The result is subnormal. One more rounding at its last place, of
		// the unrounded sum, then the scaling is exact.
		sum := 1 + y
		rest := (1 - sum + y) + (s - y + u)
		y = sum + rest - 1
	}
	return float64(0x1p-1022 * y)
}

// Expm1 returns e**x - 1, accurately for small x.
func Expm1(x float64) float64 {
	switch a := math.Abs(x); {
	case a < 0.25:
		if a < 0x1p-54 {
			return x
		}
		s := float64(x * x)
		s2 := float64(s * s)
		p := float64(s2*(float64(s*(1.0/39916800+float64(x*(1.0/479001600))))+float64(x*(1.0/3628800))+1.0/362880)) +
			float64(s*(1.0/5040+float64(x*(1.0/40320)))) + float64(x*(1.0/720)) + 1.0/120
		p = float64(s*p) + float64(x*(1.0/24)) + 1.0/6
		return x + (float64(float64(x*s)*p) + float64(s*0.5))
	case a < 512:
		if x < -38 {
			return -1
		}
		bits, t := expParts(x, 0)
		s := math.Float64frombits(bits)
		u := float64(s * t)
		if a < 40 {
			// s - 1 may round; its error is kept.
			d := s - 1
			b := d - s
			return d + (u + ((s - (d - b)) - (1 + b)))
		}
		return s + u
	case x != x:
		return math.NaN()
	case x < 0:
		return -1
	case x > expOverflow:
		return math.Inf(1)
	}
	bits, t := expParts(x, 0)
	return expScale(bits, t, true)
}

// Sigmoid returns 1/(1+e**-x).
func Sigmoid(x float64) float64 {
	if x >= 0 {
		if x > 40 {
			return 1
		}
		return 1 / (1 + Exp(-x))
	}
	if x != x {
		return math.NaN()
	}
	e := Exp(x)
	return e / (1 + e)
}

// Tanh returns the hyperbolic tangent of x.
func Tanh(x float64) float64 {
	a := math.Abs(x)
	switch {
	case a < 0x1p-28:
		return x
	case a > 20:
		return math.Copysign(1, x)
	case x != x:
		return math.NaN()
	case a >= 1:
		return math.Copysign(1-2/(1+Exp(a+a)), x)
	}
	t := Expm1(a + a)
	return math.Copysign(t/(t+2), x)
}
