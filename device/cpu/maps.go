package cpu

import (
	"math"

	"github.com/lamina-go/lamina/device"
)

// Functions of float32 and narrower numbers, most of them made of the exponential
// function: in float64, by expNear, rounded once. In assembly they take sixteen
// numbers at a time; the others, and all of them in the portable tier, are done
// in Go with the same operations.

// mapBound is more than any float32: what is bounded by it has no infinity that
// could meet a zero.
const mapBound = 1e39

// nearMap is such a function and its slope; see mapVectors for the same on
// vectors, where slopes are multiplied by g.
type nearMap struct{ value, slope func(x float64) float64 }

// bounded keeps x within ±mapBound; NaN stays.
func bounded(x float64) float64 {
	if x < -mapBound {
		x = -mapBound
	}
	if x > mapBound {
		x = mapBound
	}
	return x
}

// sigmoidNear is the sigmoid of x and that of -x.
func sigmoidNear(x float64) (s, rest float64) {
	e := expNear(0 - x)
	s = 1 / (e + 1)
	return s, e * s
}

func siluNear(x float64) float64 {
	x = bounded(x)
	s, _ := sigmoidNear(x)
	return x * s
}

func siluSlopeNear(x float64) float64 {
	x = bounded(x)
	s, rest := sigmoidNear(x)
	return s * math.FMA(x, rest, 1)
}

// geluBend is what the sigmoid of the tanh form of GELU is taken of, and x^2.
func geluBend(x float64) (bend, square float64) {
	square = float64(x * x)
	return float64(float64(x*math.FMA(geluCubic, square, 1)) * geluRoot), square
}

func geluTanhNear(x float64) float64 {
	x = bounded(x)
	bend, _ := geluBend(x)
	s, _ := sigmoidNear(bend)
	return x * s
}

func geluTanhSlopeNear(x float64) float64 {
	x = bounded(x)
	bend, square := geluBend(x)
	s, rest := sigmoidNear(bend)
	return math.FMA(float64(float64(rest*s)*x), float64(math.FMA(3*geluCubic, square, 1)*geluRoot), s)
}

// The part of the normal distribution beyond |x| is exp(-x^2/2) t q(t) with
// t = 1/(1 + |x|/4), and q this polynomial, the highest power first: Chebyshev's
// of degree 15 for 0 < t <= 1, with an error below 4e-12 of it.
var normalTail = [16]float64{-0x1.22c74d825132bp-8, 0x1.0deb89291a47dp-5, -0x1.a7e9304038bd5p-4, 0x1.6774c3854689ep-3,
	-0x1.62fc19d816acdp-3, 0x1.ca268d2620db8p-4, -0x1.006a12595bce8p-4, 0x1.0a591240013dbp-6, 0x1.37baa726ee9cap-9,
	0x1.8d55addd195b9p-6, 0x1.61671793709aep-5, 0x1.042539c437c5bp-4, 0x1.4beb0fed07844p-4, 0x1.7efc112f97ee8p-4,
	0x1.98845334449e1p-4, 0x1.9884533d47d7fp-4}

const (
	normalDensity = 1 / (math.Sqrt2 * math.SqrtPi) // at 0
	reluHuge      = 1e300                          // makes more than 1 of any float32 above 0
)

// tailNear is the part of the normal distribution beyond |x|, and exp(-x^2/2).
func tailNear(x float64) (tail, bell float64) {
	t := 1 / math.FMA(0.25, math.Abs(x), 1)
	q := normalTail[0]
	for _, c := range normalTail[1:] {
		q = math.FMA(q, t, c)
	}
	bell = expNear(float64(x*x) * -0.5)
	return float64(q*t) * bell, bell
}

// geluNear is x less |x| tail where x is above 0, else -|x| tail, or -0.
func geluNear(x float64) float64 {
	x = bounded(x)
	tail, _ := tailNear(x)
	most := x
	if x < 0 {
		most = math.Copysign(0, -1)
	}
	return math.FMA(-math.Abs(x), tail, most)
}

func geluSlopeNear(x float64) float64 {
	x = bounded(x)
	tail, bell := tailNear(x)
	tail = math.FMA(-math.Abs(x), float64(bell*normalDensity), tail)
	sign := math.Copysign(1, x)
	return math.FMA(-sign, tail, math.FMA(0.5, sign, 0.5))
}

func tanhNear(x float64) float64 {
	m := expm1Near(math.Abs(x) * -2)
	return math.Copysign(m/(m+2), x)
}

func tanhSlopeNear(x float64) float64 {
	e := expNear(math.Abs(x) * -2)
	s := 1 / (e + 1)
	return float64(float64(e*s)*s) * 4
}

// reluNear keeps -0.
func reluNear(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

func reluSlopeNear(x float64) float64 {
	y := reluNear(float64(x * reluHuge))
	if y > 1 {
		y = 1
	}
	return y
}

// nearMaps are those that there are.
var nearMaps = map[device.UnaryFunc]*nearMap{
	device.Exp: {expNear, expNear},
	device.Sigmoid: {
		func(x float64) float64 { s, _ := sigmoidNear(x); return s },
		func(x float64) float64 { s, rest := sigmoidNear(x); return rest * s },
	},
	device.SiLU:     {siluNear, siluSlopeNear},
	device.GELUTanh: {geluTanhNear, geluTanhSlopeNear},
	device.GELU:     {geluNear, geluSlopeNear},
	device.Tanh:     {tanhNear, tanhSlopeNear},
	device.ReLU:     {reluNear, reluSlopeNear},
}

func nearKernel(c *constants, out []float32, in *[maxOperands - 1][]float32) {
	x := in[0][:len(out)]
	i := 0
	if n := len(out) &^ 15; c.map1 != nil && n > 0 {
		c.map1(&out[0], &x[0], n)
		i = n
	}
	for ; i < len(out); i++ {
		out[i] = float32(c.near.value(float64(x[i])))
	}
}

func nearSlope(c *constants, out []float32, in *[maxOperands - 1][]float32) {
	g, x := in[0][:len(out)], in[1][:len(out)]
	i := 0
	if n := len(out) &^ 15; c.map2 != nil && n > 0 {
		c.map2(&out[0], &g[0], &x[0], n)
		i = n
	}
	for ; i < len(out); i++ {
		out[i] = float32(c.near.slope(float64(x[i])) * float64(g[i]))
	}
}

// expAtOnce bounds the numbers of one call, to well under 100 microseconds.
const expAtOnce = 1 << 14

// expLanes sets e[i] = exp(c[0] x[i] - c[1]) and adds that to lane i mod 16.
func expLanes(e, x []float32, s *rowScratch) {
	i := 0
	if run := expRowVectors(active); run != nil {
		for i+16 <= len(x) {
			n := min(len(x)-i, expAtOnce) &^ 15
			run(&e[i], &x[i], &s.c, n, &s.lanes)
			i += n
		}
		if rest := copy(s.tail[:], x[i:]); rest > 0 {
			s.sums = [16]float64{}
			run(&s.tail[0], &s.tail[0], &s.c, 16, &s.sums)
			for k := range copy(e[i:], s.tail[:]) {
				s.lanes[k] += s.sums[k]
			}
			return
		}
	}
	for ; i < len(x); i++ {
		v := expNear(float64(float64(x[i])*s.c[0]) - s.c[1])
		s.lanes[i%16] += v
		e[i] = float32(v)
	}
}
