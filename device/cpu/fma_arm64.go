package cpu

// fma32 is a*b + c, rounded once: on this architecture the compiler fuses the
// two, which TestFMA32 holds it to.
func fma32(a, b, c float32) float32 { return a*b + c }

// gemmPortable32 is a tile of one row and four columns in Go.
func gemmPortable32(c *float32, _ int, a *float32, _, acs int, b *float32, bks, k int, add bool) {
	x, bv, to := at(a, (k-1)*acs+1), at(b, (k-1)*bks+4), at(c, 4)
	var s0, s1, s2, s3 float32
	for q := range k {
		y := bv[q*bks : q*bks+4]
		v := x[q*acs]
		s0, s1, s2, s3 = fma32(v, y[0], s0), fma32(v, y[1], s1), fma32(v, y[2], s2), fma32(v, y[3], s3)
	}
	if !add {
		clear(to)
	}
	to[0] += s0
	to[1] += s1
	to[2] += s2
	to[3] += s3
}
