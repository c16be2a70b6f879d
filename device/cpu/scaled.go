package cpu

import "math"

// scaled is m * 2^e, a float64 whose exponent cannot over- or underflow. A
// finite m that is not 0 has 0.5 <= |m| < 1; the e of zeros, infinities and NaNs
// means nothing.
type scaled struct {
	m float64
	e int
}

// scaledOf is x * 2^e.
func scaledOf(x float64, e int) scaled {
	m, f := math.Frexp(x) // of 0, Inf and NaN: themselves and 0
	return scaled{m, e + f}
}

func (a scaled) times(b scaled) scaled { return scaledOf(a.m*b.m, a.e+b.e) }
func (a scaled) over(b scaled) scaled  { return scaledOf(a.m/b.m, a.e-b.e) }
func (a scaled) minus(b scaled) scaled { return a.plus(scaled{-b.m, b.e}) }

func (a scaled) plus(b scaled) scaled {
	switch {
	case a.m == 0 && b.m != 0:
		return b
	case b.m == 0 && a.m != 0:
		return a
	}
	e := max(a.e, b.e)
	return scaledOf(math.Ldexp(a.m, a.e-e)+math.Ldexp(b.m, b.e-e), e)
}

func (a scaled) sqrt() scaled {
	if a.e&1 != 0 {
		return scaledOf(math.Sqrt(2*a.m), (a.e-1)/2)
	}
	return scaledOf(math.Sqrt(a.m), a.e/2)
}

// float is the nearest float64.
func (a scaled) float() float64 { return math.Ldexp(a.m, a.e) }

// normalise divides v by a power of two, so that its largest element is within
// 0.5 and 1, and gives the exponent; what has no finite largest element, or
// zeros only, stays.
func normalise(v []float64) (e int) {
	e = exponent(largest(v))
	ldexp(v, -e)
	return e
}

// largest is the largest |x|, NaN if there is a NaN.
func largest(v []float64) (top float64) {
	for _, x := range v {
		top = max(top, math.Abs(x))
	}
	return top
}

// exponent is that of x, for scaling; what cannot be scaled has 0.
func exponent(x float64) int {
	if x == 0 || !(x <= math.MaxFloat64) {
		return 0
	}
	_, exp := math.Frexp(x)
	return exp
}

// ldexp multiplies by 2^exp.
func ldexp(v []float64, exp int) {
	if exp == 0 {
		return
	}
	for i, x := range v {
		v[i] = math.Ldexp(x, exp)
	}
}
