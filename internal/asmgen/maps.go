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
)

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
