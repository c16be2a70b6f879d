package cpu

import "math"

// roundedSum is p + c rounded once to float32, where s is their sum in float64
// and ends in zeros: if it is inexact it gets an odd last bit before it is rounded again (Boldo and
// Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
//
//go:noinline
func roundedSum(p, c, s float64) float32 {
	t := s - p
	lost := (p - (s - t)) + (c - t)                     // Knuth's TwoSum: p + c = s + lost
	if m := math.Float64bits(s); lost < 0 || lost > 0 { // not NaN, as where s is infinite
		if lost > 0 == (s > 0) {
			m++
		} else {
			m--
		}
		s = math.Float64frombits(m)
	}
	return float32(s)
}
