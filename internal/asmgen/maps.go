package main

import "fmt"

// maps are functions of each float32 of a slice, computed in float64 as their
// twins in Go do, with the exponential function of the quick kernels; n is a
// multiple of 16.
func maps() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		q := quick{t, v}
		q.mapOf("Exp", false, func() { q.exp(0, 1) })
		q.mapOf("Sigmoid", false, func() {
			q.sigmoid(0, 1)
			q.op("VMOVAPD", q.r(1), q.r(0))
		})
		q.mapOf("SiLU", false, func() {
			q.bound()
			q.sigmoid(0, 1)
			q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		})
		q.mapOf("GELUTanh", false, func() {
			q.bound()
			q.bend()
			q.sigmoid(5, 1)
			q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		})
		q.mapOf("SigmoidSlope", true, func() {
			q.sigmoid(0, 1)
			q.op("VMULPD", q.r(1), q.r(2), q.r(2)) // the rest
			q.op("VMULPD", q.r(2), q.r(1), q.r(0))
		})
		q.mapOf("SiLUSlope", true, func() {
			q.bound()
			q.sigmoid(0, 1)
			q.op("VMULPD", q.r(1), q.r(2), q.r(2))
			q.op("VFMADD213PD", c(mapOne), q.r(2), q.r(0)) // 1 + x rest
			q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		})
		q.mapOf("GELUTanhSlope", true, func() {
			q.bound()
			q.bend()
			q.sigmoid(5, 1)
			q.op("VMULPD", q.r(1), q.r(2), q.r(2))
			q.op("VMULPD", q.r(1), q.r(2), q.r(2)) // s rest
			q.op("VMULPD", q.r(0), q.r(2), q.r(2))
			q.op("VMOVUPD", c(mapCubic3), q.r(5)) // x^2 is in register 6
			q.op("VFMADD213PD", c(mapOne), q.r(6), q.r(5))
			q.op("VMULPD", c(mapRoot), q.r(5), q.r(5))
			q.op("VFMADD213PD", q.r(1), q.r(5), q.r(2))
			q.op("VMOVAPD", q.r(2), q.r(0))
		})
		q.mapOf("GELU", false, func() {
			q.tail()
			q.op("VMOVUPD", c(mapSign), q.r(1))    // -0
			q.op("VMAXPD", q.r(0), q.r(1), q.r(0)) // an x that is no number, or 0, is the second source
			q.op("VFNMADD231PD", q.r(7), q.r(5), q.r(0))
		})
		q.mapOf("Tanh", false, func() {
			q.doubled(5)
			q.expm1(0, 1)
			q.op("VADDPD", c(mapTwo), q.r(0), q.r(1))
			q.op("VDIVPD", q.r(1), q.r(0), q.r(0))
			q.op("VMOVUPD", c(mapSign), q.r(1))
			q.op("VANDNPD", q.r(0), q.r(1), q.r(0))
			q.op("VORPD", q.r(5), q.r(0), q.r(0))
		})
		q.mapOf("ReLU", false, func() {
			q.zero(1)
			q.op("VMAXPD", q.r(0), q.r(1), q.r(0))
		})
		q.mapOf("ExpSlope", true, func() { q.exp(0, 1) })
		q.mapOf("GELUSlope", true, func() {
			q.tail()
			q.op("VMULPD", c(mapDensity), q.r(8), q.r(8))
			q.op("VFNMADD231PD", q.r(8), q.r(5), q.r(7))
			q.op("VMOVUPD", c(mapSign), q.r(1))
			q.op("VANDPD", q.r(1), q.r(0), q.r(0))
			q.op("VORPD", c(mapOne), q.r(0), q.r(0)) // 1 with the sign of x
			q.op("VMOVUPD", c(mapHalf), q.r(2))
			q.op("VFMADD213PD", c(mapHalf), q.r(0), q.r(2))
			q.op("VFNMADD231PD", q.r(7), q.r(0), q.r(2))
			q.op("VMOVAPD", q.r(2), q.r(0))
		})
		q.mapOf("TanhSlope", true, func() {
			q.doubled(5)
			q.exp(0, 1)
			q.op("VADDPD", c(mapOne), q.r(0), q.r(1))
			q.op("VMOVUPD", c(mapOne), q.r(2))
			q.op("VDIVPD", q.r(1), q.r(2), q.r(1))
			q.op("VMULPD", q.r(1), q.r(0), q.r(0))
			q.op("VMULPD", q.r(1), q.r(0), q.r(0))
			q.op("VMULPD", c(mapFour), q.r(0), q.r(0))
		})
		q.mapOf("ReLUSlope", true, func() {
			q.op("VMULPD", c(mapHuge), q.r(0), q.r(0))
			q.zero(1)
			q.op("VMAXPD", q.r(0), q.r(1), q.r(0))
			q.op("VMOVUPD", c(mapOne), q.r(1))
			q.op("VMINPD", q.r(0), q.r(1), q.r(0))
		})
		q.expRow()
	}
	return t.String()
}

// Rows of the table of constants behind those of the exponential function.
const (
	mapOne = 16 + iota
	mapLow
	mapHigh
	mapRoot
	mapCubic
	mapCubic3
	mapSign
	mapHalf
	mapMinusHalf
	mapQuarter
	mapDensity
	mapTwo
	mapMinusTwo
	mapFour
	mapHuge
	mapTail // the first of tailTerms
)

const tailTerms = 16

func c(i int) string { return fmt.Sprintf("%d(AX)", 64*i) }

// mapOf has x in register 0 and leaves the result there; where it is a slope,
// that is multiplied by g.
func (q quick) mapOf(name string, slope bool, body func()) {
	name = "map" + name + q.name
	if slope {
		q.begin(name, "(out, grad, x *float32, n int)", 32, "out+0(FP)", "DI", "grad+8(FP)", "DX", "x+16(FP)", "SI", "n+24(FP)", "CX")
	} else {
		q.begin(name, "(out, x *float32, n int)", 24, "out+0(FP)", "DI", "x+8(FP)", "SI", "n+16(FP)", "CX")
	}
	q.op("LEAQ", "·expTable(SB)", "AX")
	q.label("loop")
	q.op("VCVTPS2PD", "(SI)", q.r(0))
	body()
	if slope {
		q.op("VCVTPS2PD", "(DX)", q.r(1))
		q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		q.op("ADDQ", fmt.Sprintf("$%d", q.bytes/2), "DX")
	}
	q.toFloat32(0)
	q.op("VMOVUPS", q.halfReg(0), "(DI)")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes/2), "SI")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes/2), "DI")
	q.op("SUBQ", fmt.Sprintf("$%d", q.bytes/8), "CX")
	q.op("JNZ", "loop")
	q.finish()
}

// halfReg is the lower half of a register.
func (q quick) halfReg(i int) string {
	if q.lanes() == 16 {
		return fmt.Sprintf("Y%d", i)
	}
	return fmt.Sprintf("X%d", i)
}

func (q quick) toFloat32(i int) {
	if q.lanes() == 16 {
		q.op("VCVTPD2PS", q.r(i), q.halfReg(i))
		return
	}
	q.op("VCVTPD2PSY", q.r(i), q.halfReg(i))
}

// bound keeps x within what float32 holds, so that infinities do not meet zeros.
func (q quick) bound() {
	q.op("VMOVUPD", c(mapLow), q.r(1))
	q.op("VMAXPD", q.r(0), q.r(1), q.r(0))
	q.op("VMOVUPD", c(mapHigh), q.r(1))
	q.op("VMINPD", q.r(0), q.r(1), q.r(0))
}

// bend puts root x (1 + cubic x^2) in register 5 and x^2 in 6.
func (q quick) bend() {
	q.op("VMULPD", q.r(0), q.r(0), q.r(6))
	q.op("VMOVUPD", c(mapCubic), q.r(5))
	q.op("VFMADD213PD", c(mapOne), q.r(6), q.r(5))
	q.op("VMULPD", q.r(0), q.r(5), q.r(5))
	q.op("VMULPD", c(mapRoot), q.r(5), q.r(5))
}

// tail puts |x| in register 5, the normal distribution's part beyond it in 7
// and exp(-x^2/2) in 8.
func (q quick) tail() {
	q.bound()
	q.op("VMOVUPD", c(mapSign), q.r(1))
	q.op("VANDNPD", q.r(0), q.r(1), q.r(5))
	q.op("VMOVAPD", q.r(5), q.r(6))
	q.op("VMOVUPD", c(mapQuarter), q.r(1))
	q.op("VFMADD213PD", c(mapOne), q.r(1), q.r(6))
	q.op("VMOVUPD", c(mapOne), q.r(1))
	q.op("VDIVPD", q.r(6), q.r(1), q.r(6)) // 1 / (1 + |x|/4)
	q.op("VMOVUPD", c(mapTail), q.r(7))
	for i := 1; i < tailTerms; i++ {
		q.op("VFMADD213PD", c(mapTail+i), q.r(6), q.r(7))
	}
	q.op("VMULPD", q.r(6), q.r(7), q.r(7))
	q.op("VMULPD", q.r(0), q.r(0), q.r(8))
	q.op("VMULPD", c(mapMinusHalf), q.r(8), q.r(8))
	q.exp(8, 9)
	q.op("VMULPD", q.r(8), q.r(7), q.r(7))
}

// doubled sets register 0 to -2|x|, and another to the sign of x.
func (q quick) doubled(sign int) {
	q.op("VMOVUPD", c(mapSign), q.r(1))
	q.op("VANDPD", q.r(1), q.r(0), q.r(sign))
	q.op("VANDNPD", q.r(0), q.r(1), q.r(0))
	q.op("VMULPD", c(mapMinusTwo), q.r(0), q.r(0))
}

// sigmoid of register x in s, and exp(-x) in the next; two more are used.
func (q quick) sigmoid(x, s int) {
	q.zero(s + 1)
	q.op("VSUBPD", q.r(x), q.r(s+1), q.r(s+1))
	q.exp(s+1, s+2)
	q.op("VADDPD", c(mapOne), q.r(s+1), q.r(s))
	q.op("VMOVUPD", c(mapOne), q.r(s+2))
	q.op("VDIVPD", q.r(s), q.r(s+2), q.r(s))
}

// expRow sets e to exp(c[0] x - c[1]) and adds those to sixteen lanes by index.
func (q quick) expRow() {
	name := "expRow" + q.name
	q.begin(name, "(e, x *float32, c *[2]float64, n int, lanes *[16]float64)", 40,
		"e+0(FP)", "DI", "x+8(FP)", "SI", "c+16(FP)", "BX", "n+24(FP)", "CX", "lanes+32(FP)", "DX")
	q.op("LEAQ", "·expTable(SB)", "AX")
	q.op("VBROADCASTSD", "(BX)", q.r(6))
	q.op("VBROADCASTSD", "8(BX)", q.r(7))
	vectors := 16 * 8 / q.bytes
	for i := range vectors {
		q.op("VMOVUPD", fmt.Sprintf("%d(DX)", i*q.bytes), q.r(8+i))
	}
	q.label("loop")
	for i := range vectors {
		q.op("VCVTPS2PD", fmt.Sprintf("%d(SI)", i*q.bytes/2), q.r(0))
		q.op("VMULPD", q.r(6), q.r(0), q.r(0))
		q.op("VSUBPD", q.r(7), q.r(0), q.r(0))
		q.exp(0, 1)
		q.op("VADDPD", q.r(0), q.r(8+i), q.r(8+i))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), fmt.Sprintf("%d(DI)", i*q.bytes/2))
	}
	q.op("ADDQ", "$64", "SI")
	q.op("ADDQ", "$64", "DI")
	q.again()
	for i := range vectors {
		q.op("VMOVUPD", q.r(8+i), fmt.Sprintf("%d(DX)", i*q.bytes))
	}
	q.finish()
}
