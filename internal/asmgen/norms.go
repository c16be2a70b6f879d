package main

import "fmt"

// norms are the row operations of RMSNorm and LayerNorm, and AdamW: on float32,
// in float64, n being a multiple of 16. Sums have sixteen lanes by index.
func norms() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		q := quick{t, v}
		q.moments()
		q.normal(true)
		q.normal(false)
		q.normDots()
		q.normSlopes()
		q.adamW()
	}
	return t.String()
}

// each unrolls body over the vectors of sixteen numbers.
func (q quick) each(body func(i int)) {
	for i := range 16 * 8 / q.bytes {
		body(i)
	}
}

// wide is the operand of vector i of float64 at a register, single of float32.
func (q quick) wide(reg string, i int) string   { return fmt.Sprintf("%d(%s)", i*q.bytes, reg) }
func (q quick) single(reg string, i int) string { return fmt.Sprintf("%d(%s)", i*q.bytes/2, reg) }

func (q quick) step16(singles, wides []string) {
	for _, r := range singles {
		q.op("ADDQ", "$64", r)
	}
	for _, r := range wides {
		q.op("ADDQ", "$128", r)
	}
	q.again()
}

// moments adds x - c[0] to sixteen lanes and its square to sixteen more.
func (q quick) moments() {
	q.begin("moments"+q.name, "(x *float32, c *[2]float64, n int, lanes *[32]float64)", 32, "x+0(FP)", "SI", "c+8(FP)", "BX", "n+16(FP)", "CX", "lanes+24(FP)", "DX")
	q.op("VBROADCASTSD", "(BX)", q.r(1))
	vectors := 16 * 8 / q.bytes
	for i := range 2 * vectors {
		q.op("VMOVUPD", q.wide("DX", i), q.r(4+i))
	}
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("SI", i), q.r(0))
		q.op("VSUBPD", q.r(1), q.r(0), q.r(0))
		q.op("VADDPD", q.r(0), q.r(4+i), q.r(4+i))
		q.op("VFMADD231PD", q.r(0), q.r(0), q.r(4+vectors+i))
	})
	q.step16([]string{"SI"}, nil)
	for i := range 2 * vectors {
		q.op("VMOVUPD", q.r(4+i), q.wide("DX", i))
	}
	q.finish()
}

// normal writes (x - c[0]) c[1] w, and adds b where there is one.
func (q quick) normal(bias bool) {
	name, sig, args := "normal"+q.name, "(y, x, w *float32, c *[2]float64, n int)", 40
	params := []string{"y+0(FP)", "DI", "x+8(FP)", "SI", "w+16(FP)", "R8", "c+24(FP)", "BX", "n+32(FP)", "CX"}
	singles := []string{"DI", "SI", "R8"}
	if bias {
		name, sig, args = "normalBias"+q.name, "(y, x, w, b *float32, c *[2]float64, n int)", 48
		params = []string{"y+0(FP)", "DI", "x+8(FP)", "SI", "w+16(FP)", "R8", "b+24(FP)", "R9", "c+32(FP)", "BX", "n+40(FP)", "CX"}
		singles = append(singles, "R9")
	}
	q.begin(name, sig, args, params...)
	q.op("VBROADCASTSD", "(BX)", q.r(4))
	q.op("VBROADCASTSD", "8(BX)", q.r(5))
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("SI", i), q.r(0))
		q.op("VCVTPS2PD", q.single("R8", i), q.r(1))
		q.op("VSUBPD", q.r(4), q.r(0), q.r(0))
		q.op("VMULPD", q.r(5), q.r(0), q.r(0))
		q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		if bias {
			q.op("VCVTPS2PD", q.single("R9", i), q.r(1))
			q.op("VADDPD", q.r(1), q.r(0), q.r(0))
		}
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16(singles, nil)
	q.finish()
}

// normDots adds g w and g w xh, with xh = (x - c[0]) c[1], to sixteen lanes each.
func (q quick) normDots() {
	q.begin("normDots"+q.name, "(grad, x, w *float32, c *[4]float64, n int, lanes *[32]float64)", 48,
		"grad+0(FP)", "DI", "x+8(FP)", "SI", "w+16(FP)", "R8", "c+24(FP)", "BX", "n+32(FP)", "CX", "lanes+40(FP)", "DX")
	q.op("VBROADCASTSD", "(BX)", q.r(2))
	q.op("VBROADCASTSD", "8(BX)", q.r(3))
	vectors := 16 * 8 / q.bytes
	for i := range 2 * vectors {
		q.op("VMOVUPD", q.wide("DX", i), q.r(4+i))
	}
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("DI", i), q.r(0))
		q.op("VCVTPS2PD", q.single("R8", i), q.r(1))
		q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		q.op("VCVTPS2PD", q.single("SI", i), q.r(1))
		q.op("VSUBPD", q.r(2), q.r(1), q.r(1))
		q.op("VMULPD", q.r(3), q.r(1), q.r(1))
		q.op("VADDPD", q.r(0), q.r(4+i), q.r(4+i))
		q.op("VFMADD231PD", q.r(1), q.r(0), q.r(4+vectors+i))
	})
	q.step16([]string{"DI", "SI", "R8"}, nil)
	for i := range 2 * vectors {
		q.op("VMOVUPD", q.r(4+i), q.wide("DX", i))
	}
	q.finish()
}

// normSlopes writes dx = (g w - c[2] - xh c[3]) c[1] and adds g xh to dw and g to db.
func (q quick) normSlopes() {
	q.begin("normSlopes"+q.name, "(dx, grad, x, w *float32, c *[4]float64, n int, dw, db *float64)", 64,
		"dx+0(FP)", "DI", "grad+8(FP)", "DX", "x+16(FP)", "SI", "w+24(FP)", "R8", "c+32(FP)", "BX", "n+40(FP)", "CX", "dw+48(FP)", "R9", "db+56(FP)", "R10")
	for i := range 4 {
		q.op("VBROADCASTSD", fmt.Sprintf("%d(BX)", 8*i), q.r(8+i))
	}
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("DX", i), q.r(0))
		q.op("VCVTPS2PD", q.single("SI", i), q.r(1))
		q.op("VCVTPS2PD", q.single("R8", i), q.r(2))
		q.op("VSUBPD", q.r(8), q.r(1), q.r(1))
		q.op("VMULPD", q.r(9), q.r(1), q.r(1)) // xh
		q.op("VMOVUPD", q.wide("R9", i), q.r(3))
		q.op("VFMADD231PD", q.r(1), q.r(0), q.r(3))
		q.op("VMOVUPD", q.r(3), q.wide("R9", i))
		q.op("VADDPD", q.wide("R10", i), q.r(0), q.r(3))
		q.op("VMOVUPD", q.r(3), q.wide("R10", i))
		q.op("VMULPD", q.r(2), q.r(0), q.r(0))
		q.op("VSUBPD", q.r(10), q.r(0), q.r(0))
		q.op("VFNMADD231PD", q.r(1), q.r(11), q.r(0))
		q.op("VMULPD", q.r(9), q.r(0), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI", "DX", "SI", "R8"}, []string{"R9", "R10"})
	q.finish()
}

// adamW updates m = c[0] m + c[1] g, v = c[2] v + c[3] g^2, each rounded, and
// w = c[4] w - c[5] m / (sqrt(v) c[6] + c[7]).
func (q quick) adamW() {
	q.begin("adamW"+q.name, "(w, m, v, grad *float32, c *[8]float64, n int)", 48,
		"w+0(FP)", "DI", "m+8(FP)", "SI", "v+16(FP)", "DX", "grad+24(FP)", "R8", "c+32(FP)", "BX", "n+40(FP)", "CX")
	for i := range 8 {
		q.op("VBROADCASTSD", fmt.Sprintf("%d(BX)", 8*i), q.r(8+i))
	}
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("R8", i), q.r(0))
		q.op("VCVTPS2PD", q.single("SI", i), q.r(1))
		q.op("VMULPD", q.r(8), q.r(1), q.r(1))
		q.op("VFMADD231PD", q.r(0), q.r(9), q.r(1))
		q.toFloat32(1)
		q.op("VMOVUPS", q.halfReg(1), q.single("SI", i))
		q.op("VCVTPS2PD", q.halfReg(1), q.r(1))
		q.op("VCVTPS2PD", q.single("DX", i), q.r(2))
		q.op("VMULPD", q.r(10), q.r(2), q.r(2))
		q.op("VMULPD", q.r(0), q.r(0), q.r(0))
		q.op("VFMADD231PD", q.r(0), q.r(11), q.r(2))
		q.toFloat32(2)
		q.op("VMOVUPS", q.halfReg(2), q.single("DX", i))
		q.op("VCVTPS2PD", q.halfReg(2), q.r(2))
		q.op("VSQRTPD", q.r(2), q.r(2))
		q.op("VFMADD213PD", q.r(15), q.r(14), q.r(2))
		q.op("VMULPD", q.r(13), q.r(1), q.r(1))
		q.op("VDIVPD", q.r(2), q.r(1), q.r(1))
		q.op("VCVTPS2PD", q.single("DI", i), q.r(0))
		q.op("VFMSUB213PD", q.r(1), q.r(12), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI", "SI", "DX", "R8"}, nil)
	q.finish()
}
