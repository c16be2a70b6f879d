package cpu

import "math"

// expTable is what expNear computes with, each number eight times for the
// vectors of the assembly: the least and the largest exponent, log2(e), the
// shift that rounds to a whole number, ln 2 in two parts, and the polynomial
// for e^x within ±ln(2)/2, highest power first: Chebyshev's of degree 9, with
// an error below 3e-14. Then what the functions of maps.go need.
var expTable = func() (t [47][8]float64) {
	for i, c := range append([]float64{-708, 709, math.Log2E, 0x1.8p52, 0x1.62e42feep-1, 0x1.a39ef35793c76p-33,
		0x1.72e107c874de9p-19, 0x1.a17df0d914d6cp-16, 0x1.a01994c849582p-13, 0x1.6c162bb7d965cp-10, 0x1.11111123bf154p-7,
		0x1.55555588b8403p-5, 0x1.5555555550d88p-3, 0x1.ffffffffe74f1p-2, 1, 1,
		1, -mapBound, mapBound, geluRoot, geluCubic, 3 * geluCubic,
		math.Copysign(0, -1), 0.5, -0.5, 0.25, normalDensity, 2, -2, 4, reluHuge}, normalTail[:]...) {
		for k := range t[i] {
			t[i][k] = c
		}
	}
	return t
}()

// expNear is e^x to about 3e-14, for results that are rounded to a narrower
// format; below e^-708 it is that, and above e^709 that. The same operations
// are done on vectors in assembly.
func expNear(x float64) float64 {
	scale, r, p := expParts(x)
	return math.FMA(p, r, expTable[15][0]) * scale
}

// expm1Near is e^x - 1 to about 3e-13, however near to 0 x is.
func expm1Near(x float64) float64 {
	scale, r, p := expParts(x)
	return math.FMA(scale, float64(r*p), scale-1)
}

// expParts are a power of two, the rest r of the exponent, and (e^r - 1)/r.
func expParts(x float64) (scale, r, p float64) {
	if x < expTable[0][0] {
		x = expTable[0][0]
	}
	if x > expTable[1][0] {
		x = expTable[1][0]
	}
	k := math.FMA(x, expTable[2][0], expTable[3][0])
	n := k - expTable[3][0]
	r = math.FMA(-n, expTable[4][0], x)
	r = math.FMA(-n, expTable[5][0], r)
	p = expTable[6][0]
	for i := 7; i < 15; i++ {
		p = math.FMA(p, r, expTable[i][0])
	}
	return math.Float64frombits(math.Float64bits(1) + math.Float64bits(k)<<52), r, p
}
