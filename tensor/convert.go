package tensor

import (
	"math"

	"github.com/x448/float16"
)

// BFloat16FromFloat32 rounds to the nearest bfloat16, ties to even, and gives
// its bits. Subnormals survive, overflow gives an infinity, a NaN stays a
// (quiet) NaN.
func BFloat16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // a payload in the low half alone would round to Inf
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// BFloat16ToFloat32 widens the bits of a bfloat16; exact.
func BFloat16ToFloat32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// BFloat16FromFloat64 rounds once, to nearest even.
func BFloat16FromFloat64(f float64) uint16 {
	b := math.Float64bits(f)
	m := b &^ (1 << 63)
	// For what is normal in bfloat16 an integer addition rounds; a carry moves
	// into the exponent, at the end to that of an infinity.
	if m-(1023-126)<<52 < (126+128)<<52 {
		return uint16(b>>48)&0x8000 | uint16((m+(1<<44-1)+m>>45&1)>>45-(1023-127)<<7)
	}
	return BFloat16FromFloat32(roundToOdd(f))
}

// Float16FromFloat32 rounds to the nearest IEEE binary16, ties to even, and
// gives its bits; a signalling NaN becomes quiet.
func Float16FromFloat32(f float32) uint16 { return float16.Fromfloat32(f).Bits() }

// Float16ToFloat32 widens the bits of a binary16; exact.
func Float16ToFloat32(h uint16) float32 { return float16.Frombits(h).Float32() }

// Float16FromFloat64 rounds once, to nearest even.
func Float16FromFloat64(f float64) uint16 {
	b := math.Float64bits(f)
	m := b &^ (1 << 63)
	if m-(1023-14)<<52 < (14+16)<<52 { // normal in binary16, as above
		return uint16(b>>48)&0x8000 | uint16((m+(1<<41-1)+m>>42&1)>>42-(1023-15)<<10)
	}
	return Float16FromFloat32(roundToOdd(f))
}

// roundToOdd narrows so that a later rounding to 16 bits is that of f itself:
// an inexact result gets an odd last bit, which no later step takes for a tie
// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
func roundToOdd(f float64) float32 {
	r := float32(f)
	if float64(r) == f {
		return r
	}
	b := math.Float32bits(r)
	if b&1 != 0 {
		return r
	}
	// r is even and inexact: the other neighbour of f is the odd one. A NaN stays a NaN.
	if math.Abs(float64(r)) > math.Abs(f) {
		return math.Float32frombits(b - 1)
	}
	return math.Float32frombits(b + 1)
}

// Round gives x as it reads after being stored in dtype d: rounded once, to
// nearest even. Integer types truncate.
func Round(d DType, x float64) float64 {
	switch d {
	case Float32:
		return float64(float32(x))
	case Float16:
		return float64(Float16ToFloat32(Float16FromFloat64(x)))
	case BFloat16:
		return float64(BFloat16ToFloat32(BFloat16FromFloat64(x)))
	case Int32, Int64:
		return math.Trunc(x)
	}
	return x
}
