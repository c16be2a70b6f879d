//go:build !arm64

package cpu

import "math"

// doubt are the last bits of a float64, all of them zero half-way between two
// numbers of float32.
const doubt = 1<<28 - 1

// fma32 is a*b + c, rounded once. The product is exact in float64. What their
// sum loses there matters only if it lies half-way between two numbers of
// float32, subnormal ones included, and those places end in zeros.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	if math.Float64bits(s)&doubt == 0 {
		return roundedSum(p, float64(c), s)
	}
	return float32(s)
}

// gemmPortable32 is a tile of one row and four columns in Go: fma32, written out
// because the compiler does not do so.
func gemmPortable32(c *float32, _ int, a *float32, _, acs int, b *float32, bks, k int, add bool) {
	x, bv, to := at(a, (k-1)*acs+1), at(b, (k-1)*bks+4), at(c, 4)
	var s0, s1, s2, s3 float64 // each a number of float32
	for q := range k {
		y := bv[q*bks : q*bks+4]
		v := float64(x[q*acs])
		p0, p1, p2, p3 := v*float64(y[0]), v*float64(y[1]), v*float64(y[2]), v*float64(y[3])
		t0, t1, t2, t3 := p0+s0, p1+s1, p2+s2, p3+s3
		if math.Float64bits(t0)&doubt == 0 {
			t0 = float64(roundedSum(p0, s0, t0))
		}
		if math.Float64bits(t1)&doubt == 0 {
			t1 = float64(roundedSum(p1, s1, t1))
		}
		if math.Float64bits(t2)&doubt == 0 {
			t2 = float64(roundedSum(p2, s2, t2))
		}
		if math.Float64bits(t3)&doubt == 0 {
			t3 = float64(roundedSum(p3, s3, t3))
		}
		s0, s1, s2, s3 = float64(float32(t0)), float64(float32(t1)), float64(float32(t2)), float64(float32(t3))
	}
	if !add {
		clear(to)
	}
	to[0] += float32(s0)
	to[1] += float32(s1)
	to[2] += float32(s2)
	to[3] += float32(s3)
}
