package elementary

import "math"

// Pow returns x**y.
func Pow(x, y float64) float64 {
	switch {
	case y == 0 || x == 1:
		return 1
	case y == 1:
		if x != x {
			return math.NaN()
		}
		return x
	case x != x || y != y:
		return math.NaN()
	}
	bits := math.Float64bits(x)
	negative := false
	ax := math.Abs(x)
	if bits-minNormalBits >= infBits-minNormalBits {
		if x < 0 && x >= -math.MaxFloat64 {
			if y != math.Trunc(y) {
				// An infinite y is its own integer part.
				return math.NaN()
			}
			if x == -1 && math.IsInf(y, 0) {
				return 1
			}
		}
		negative = math.Signbit(x) && isOdd(y)
		if x == 0 || math.IsInf(x, 0) {
			if (x == 0) == (y > 0) {
				return signed(0, negative)
			}
			return signed(math.Inf(1), negative)
		}
		bits = math.Float64bits(ax)
		if bits < minNormalBits {
			bits = math.Float64bits(float64(ax*0x1p52)) - 52<<52
		}
	}
	switch ay := math.Abs(y); {
	case y == 2:
		return float64(x * x)
	case y == -1:
		return 1 / x
	case y == 0.5:
		return math.Sqrt(x)
	case ay > 0x1p64:
		// Includes infinite y. The base is not one, so the power is out of
		// range, except for the base -1.
		switch {
		case ax == 1:
			return 1
		case (ax > 1) == (y > 0):
			return math.Inf(1)
		}
		return 0
	case ay < 0x1p-64:
		return 1
	}

	lh, ll := logPair(bits)
	lt := math.Float64frombits(math.Float64bits(lh) &^ lowHalf)
	yt := math.Float64frombits(math.Float64bits(y) &^ lowHalf)
	eh := float64(yt * lt)
	if eh >= 710 {
		return signed(math.Inf(1), negative)
	}
	if eh <= -746 {
		return signed(0, negative)
	}
	el := float64((y-yt)*lt) + float64(y*(lh-lt+ll))
	scale, t := expParts(eh, el)
	if eh >= 512 || eh <= -512 {
		return signed(expScale(scale, t, eh > 0), negative)
	}
	s := math.Float64frombits(scale)
	return signed(s+float64(s*t), negative)
}

func signed(x float64, negative bool) float64 {
	if negative {
		return -x
	}
	return x
}

// isOdd reports whether y is an odd integer.
func isOdd(y float64) bool {
	a := math.Abs(y)
	return a < 0x1p53 && a == math.Trunc(a) && int64(a)&1 == 1
}
