package elementary

import "math"

const (
	// ln2LogHi is a multiple of 2**-42, as are the leading parts in
	// logTable, so that sums of them with multiples of it stay exact.
	ln2LogHi = 0x1.62e42fefa38p-1
	ln2LogLo = math.Ln2 - ln2LogHi

	// logOffset is the bits of 0.6875, the smallest reduced argument.
	logOffset = 0x3fe6000000000000

	// The bits of the numbers whose entry in logTable is one.
	logOneFrom  = 0x3fefe00000000000 // 1 - 2**-8
	logOneUntil = 0x3ff0200000000000 // 1 + 2**-7

	minNormalBits = 0x0010000000000000
	infBits       = 0x7ff0000000000000
)

type logEntry struct {
	inv    float64 // 1/c, with few bits
	hi, lo float64 // log(c)
}

// logReduce splits the positive normal number with the given bits: its
// logarithm is k*ln2 + log(c) + log(1 + rh + rl). The parts rh and rl are
// exact, and rh is a multiple of 2**-42.
func logReduce(bits uint64) (k float64, e *logEntry, rh, rl float64) {
	d := bits - logOffset
	bits -= d &^ (1<<52 - 1)
	e = &logTable[d>>45%128]
	z := math.Float64frombits(bits)
	zh := math.Float64frombits(bits &^ (1<<21 - 1))
	return float64(int64(d) >> 52), e, float64(zh*e.inv) - 1, float64((z - zh) * e.inv)
}

// logTail returns log(1+r) - r for r from -1/256 to 1/128.
func logTail(r float64) float64 {
	s := float64(r * r)
	p := float64(s*(float64(s*(1.0/7-float64(r*(1.0/8))))+1.0/5-float64(r*(1.0/6)))) + 1.0/3 - float64(r*(1.0/4))
	return float64(float64(r*s)*p) - float64(s*0.5)
}

// Log returns the natural logarithm of x.
func Log(x float64) float64 {
	bits := math.Float64bits(x)
	if bits-logOneFrom < logOneUntil-logOneFrom {
		r := x - 1
		return r + logTail(r)
	}
	if bits-minNormalBits >= infBits-minNormalBits {
		switch {
		case x == 0:
			return math.Inf(-1)
		case x > math.MaxFloat64:
			return x
		case !(x > 0):
			return math.NaN()
		}
		bits = math.Float64bits(float64(x*0x1p52)) - 52<<52
	}
	k, e, rh, rl := logReduce(bits)
	hi := float64(k*ln2LogHi) + e.hi + rh
	return hi + (float64(k*ln2LogLo) + e.lo + rl + logTail(rh+rl))
}

// Log1p returns log(1+x), accurately for small x.
func Log1p(x float64) float64 {
	switch {
	case x != x || x < -1:
		return math.NaN()
	case x == -1:
		return math.Inf(-1)
	case x > math.MaxFloat64:
		return x
	case x > -0x1p-8 && x < 0x1p-7:
		if math.Abs(x) < 0x1p-54 {
			return x
		}
		return x + logTail(x)
	}
	u, c := twoSum(1, x)
	k, e, rh, rl := logReduce(math.Float64bits(u))
	hi := float64(k*ln2LogHi) + e.hi + rh
	return hi + (float64(k*ln2LogLo) + e.lo + rl + c/u + logTail(rh+rl))
}

// logPair returns the logarithm of the positive normal number with the given
// bits as a sum with at least 65 good bits.
func logPair(bits uint64) (hi, lo float64) {
	k, e, rh, rl := logReduce(bits)
	r, re := twoSum(rh, rl)
	h, l := twoSum(float64(k*ln2LogHi)+e.hi+rh, rl)

	// r*r in two parts: the square of the leading 26 bits of r is exact.
	top := math.Float64frombits(math.Float64bits(r) &^ lowHalf)
	rest := r - top + re
	sh := float64(float64(top*top) * -0.5)
	sl := float64(float64(rest*(top+r)) * -0.5)

	s := float64(r * r)
	s2 := float64(s * s)
	p := float64(s2*(1.0/7-float64(r*(1.0/8))+float64(s*(1.0/9-float64(r*(1.0/10)))))) +
		float64(s*(1.0/5-float64(r*(1.0/6)))) + 1.0/3 - float64(r*(1.0/4))

	sum := h + sh
	lo = (h - sum + sh) + l + sl + (float64(k*ln2LogLo) + e.lo) + float64(float64(r*s)*p)
	hi = sum + lo
	return hi, sum - hi + lo
}
