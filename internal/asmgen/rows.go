package main

import "fmt"

// rowKernels are the row operations of BlockAttnRes in AVX-512, sixteen elements
// at a time: a row is widened to two vectors of float64 as it is read, and what
// is written is rounded once. n counts elements and is a multiple of 16.
func rowKernels() string {
	t := newText()
	for _, r := range []row{{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F64", 8}} {
		t.squares(r)
		t.dots(r)
		t.mix(r)
		t.narrow(r)
		t.slopes(r)
	}
	return t.String()
}

// row is a format of rows.
type row struct {
	name  string
	bytes int
}

func zmm(i int) string { return fmt.Sprintf("Z%d", i) }
func ymm(i int) string { return fmt.Sprintf("Y%d", i) }

// widen reads 16 elements at an address into lo and hi; temp is a third register.
func (t *text) widen(r row, at string, off int, lo, hi, temp int) {
	from := func(d int) string { return fmt.Sprintf("%d%s", off+d, at) }
	switch r.name {
	case "BF16":
		t.op("VPMOVZXWD", from(0), zmm(temp))
		t.op("VPSLLD", "$16", zmm(temp), zmm(temp))
		t.op("VCVTPS2PD", ymm(temp), zmm(lo))
		t.op("VEXTRACTF64X4", "$1", zmm(temp), ymm(temp))
		t.op("VCVTPS2PD", ymm(temp), zmm(hi))
	case "F16":
		t.op("VCVTPH2PS", from(0), zmm(temp))
		t.op("VCVTPS2PD", ymm(temp), zmm(lo))
		t.op("VEXTRACTF64X4", "$1", zmm(temp), ymm(temp))
		t.op("VCVTPS2PD", ymm(temp), zmm(hi))
	case "F32":
		t.op("VCVTPS2PD", from(0), zmm(lo))
		t.op("VCVTPS2PD", from(32), zmm(hi))
	default:
		t.op("VMOVUPD", from(0), zmm(lo))
		t.op("VMOVUPD", from(64), zmm(hi))
	}
}

// prepareNarrow sets up the constants of narrowing in Z24 to Z29.
func (t *text) prepareNarrow(r row) {
	constant := func(v string, to int) {
		t.op("MOVL", v, "AX")
		t.op("VPBROADCASTD", "AX", zmm(to))
	}
	if r.bytes == 2 {
		constant("$1", 24)
	}
	if r.name == "BF16" {
		constant("$0x7fff", 25)
		constant("$0x40", 26)
	}
}

// store rounds lo and hi, once, to 16 elements at an address. It uses Z28 to
// Z31, K1 and K2.
func (t *text) store(r row, lo, hi int, at string, off int) {
	to := func(d int) string { return fmt.Sprintf("%d%s", off+d, at) }
	switch r.name {
	case "F64":
		t.op("VMOVUPD", zmm(lo), to(0))
		t.op("VMOVUPD", zmm(hi), to(64))
		return
	case "F32":
		t.op("VCVTPD2PS", zmm(lo), ymm(28))
		t.op("VCVTPD2PS", zmm(hi), ymm(29))
		t.op("VMOVUPS", ymm(28), to(0))
		t.op("VMOVUPS", ymm(29), to(32))
		return
	}
	// To float32 towards zero, with an odd last bit where that lost something:
	// the next rounding is then that of the float64.
	for i, from := range []int{lo, hi} {
		t.op("VCVTPD2PS.RZ_SAE", zmm(from), ymm(28+i))
		t.op("VCVTPS2PD", ymm(28+i), zmm(30+i))
		t.op("VCMPPD", "$4", zmm(from), zmm(30+i), fmt.Sprintf("K%d", 1+i)) // not equal, or NaN
	}
	t.op("KUNPCKBW", "K1", "K2", "K1")
	t.op("VINSERTF64X4", "$1", ymm(29), zmm(28), zmm(28))
	t.op("VPORD", zmm(24), zmm(28), "K1", zmm(28))
	if r.name == "F16" {
		t.op("VCVTPS2PH", "$0", zmm(28), to(0))
		return
	}
	// bfloat16, to nearest even: a carry moves into the exponent.
	t.op("VCMPPS", "$3", zmm(28), zmm(28), "K2") // NaN
	t.op("VPSRLD", "$16", zmm(28), zmm(29))
	t.op("VPANDD", zmm(24), zmm(29), zmm(30))
	t.op("VPADDD", zmm(25), zmm(30), zmm(30))
	t.op("VPADDD", zmm(28), zmm(30), zmm(30))
	t.op("VPSRLD", "$16", zmm(30), zmm(30))
	t.op("VPORD", zmm(26), zmm(29), "K2", zmm(30)) // a NaN stays one
	t.op("VPMOVDW", zmm(30), to(0))
}

func (t *text) begin(name, signature string, args int, params ...string) {
	t.function(name, "func "+name+signature, args)
	for i := 0; i < len(params); i += 2 {
		t.op("MOVQ", params[i], params[i+1])
	}
}

func (t *text) finish() {
	t.op("VZEROUPPER")
	t.op("RET")
}

// squares adds to sixteen lanes each of v.v and v.y.
func (t *text) squares(r row) {
	t.begin("squares"+r.name+"AVX512", "(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)", 32, "v+0(FP)", "SI", "y+8(FP)", "DX", "n+16(FP)", "CX", "lanes+24(FP)", "DI")
	t.products(r, zmm(4), zmm(5))
}

// dots adds to sixteen lanes each of v.x and v.y.
func (t *text) dots(r row) {
	t.begin("dots"+r.name+"AVX512", "(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)", 40, "v+0(FP)", "SI", "x+8(FP)", "BX", "y+16(FP)", "DX", "n+24(FP)", "CX", "lanes+32(FP)", "DI")
	t.products(r, "(BX)", "64(BX)")
}

// products adds the row at SI times what lo and hi are, and times y at DX.
func (t *text) products(r row, lo, hi string) {
	t.next(r)
	for i := range 4 {
		t.op("VMOVUPD", fmt.Sprintf("%d(DI)", 64*i), zmm(i))
	}
	t.label("loop")
	t.op("PREFETCHT1", "(SI)(R8*1)")
	if r.bytes == 8 {
		t.op("PREFETCHT1", "64(SI)(R8*1)")
	}
	t.widen(r, "(SI)", 0, 4, 5, 6)
	t.op("VFMADD231PD", lo, zmm(4), zmm(0))
	t.op("VFMADD231PD", hi, zmm(5), zmm(1))
	t.op("VFMADD231PD", "(DX)", zmm(4), zmm(2))
	t.op("VFMADD231PD", "64(DX)", zmm(5), zmm(3))
	t.step(r, "SI")
	if lo == "(BX)" {
		t.op("ADDQ", "$128", "BX")
	}
	t.op("ADDQ", "$128", "DX")
	t.again()
	for i := range 4 {
		t.op("VMOVUPD", zmm(i), fmt.Sprintf("%d(DI)", 64*i))
	}
	t.finish()
}

// next is the distance of the next token's row in R8, to be fetched ahead.
func (t *text) next(r row) {
	t.op("MOVQ", "CX", "R8")
	t.op("IMULQ", fmt.Sprintf("$%d", r.bytes), "R8")
}

func (t *text) step(r row, reg string) { t.op("ADDQ", fmt.Sprintf("$%d", 16*r.bytes), reg) }

func (t *text) again() {
	t.op("SUBQ", "$16", "CX")
	t.op("JNZ", "loop")
}

// mix sets h to the sum of alpha times rows, in their order; the first product
// is not added to anything. It goes along the rows for 32 columns at a time.
func (t *text) mix(r row) {
	name := "mix" + r.name + "AVX512"
	t.begin(name, "(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int)", 48, "h+0(FP)", "DI", "rows+8(FP)", "R8", "alpha+16(FP)", "R9", "l+24(FP)", "R10", "at+32(FP)", "R11", "n+40(FP)", "CX")
	t.op("IMULQ", fmt.Sprintf("$%d", r.bytes), "R11")
	part := func(label string, sixteens int) {
		t.label(label)
		t.op("MOVQ", "R8", "SI")
		t.op("MOVQ", "R9", "DX")
		t.op("MOVQ", "R10", "BX")
		t.op("MOVQ", "(SI)", "AX")
		t.op("ADDQ", "R11", "AX")
		t.op("VBROADCASTSD", "(DX)", zmm(8))
		for i := range sixteens {
			t.widen(r, "(AX)", 16*i*r.bytes, 9, 10, 11)
			t.op("VMULPD", zmm(9), zmm(8), zmm(2*i))
			t.op("VMULPD", zmm(10), zmm(8), zmm(2*i+1))
		}
		t.op("JMP", label+"next")
		t.label(label + "row")
		t.op("MOVQ", "(SI)", "AX")
		t.op("ADDQ", "R11", "AX")
		t.op("VBROADCASTSD", "(DX)", zmm(8))
		for i := range sixteens {
			t.widen(r, "(AX)", 16*i*r.bytes, 9, 10, 11)
			t.op("VFMADD231PD", zmm(9), zmm(8), zmm(2*i))
			t.op("VFMADD231PD", zmm(10), zmm(8), zmm(2*i+1))
		}
		t.label(label + "next")
		t.op("ADDQ", "$8", "SI")
		t.op("ADDQ", "$8", "DX")
		t.op("DECQ", "BX")
		t.op("JNZ", label+"row")
		for i := range 2 * sixteens {
			t.op("VMOVUPD", zmm(i), fmt.Sprintf("%d(DI)", 64*i))
		}
		t.op("ADDQ", fmt.Sprintf("$%d", 128*sixteens), "DI")
		t.op("ADDQ", fmt.Sprintf("$%d", 16*sixteens*r.bytes), "R11")
		t.op("SUBQ", fmt.Sprintf("$%d", 16*sixteens), "CX")
	}
	t.op("CMPQ", "CX", "$32")
	t.op("JLT", "one")
	part("two", 2)
	t.op("CMPQ", "CX", "$32")
	t.op("JGE", "two")
	t.op("TESTQ", "CX", "CX")
	t.op("JZ", "done")
	part("one", 1)
	t.label("done")
	t.finish()
}

// narrow rounds float64 numbers to a row.
func (t *text) narrow(r row) {
	name := "narrow" + r.name + "AVX512"
	t.begin(name, "(to unsafe.Pointer, from *float64, n int)", 24, "to+0(FP)", "DI", "from+8(FP)", "SI", "n+16(FP)", "CX")
	t.prepareNarrow(r)
	t.label("loop")
	t.op("VMOVUPD", "(SI)", zmm(0))
	t.op("VMOVUPD", "64(SI)", zmm(1))
	t.store(r, 0, 1, "(DI)", 0)
	t.op("ADDQ", "$128", "SI")
	t.step(r, "DI")
	t.again()
	t.finish()
}

// slopes writes dv = c[0] g + c[1] u - c[2] v and adds c[3] v to q. Of float32
// and float64, what begins at a line goes past the caches if past is not 0.
func (t *text) slopes(r row) {
	name := "slopes" + r.name + "AVX512"
	t.begin(name, "(to, v unsafe.Pointer, grad, u, q *float64, c *[4]float64, n, past int)", 64, "to+0(FP)", "DI", "v+8(FP)", "SI", "grad+16(FP)", "BX", "u+24(FP)", "DX", "q+32(FP)", "R9", "c+40(FP)", "R10", "n+48(FP)", "CX")
	t.prepareNarrow(r)
	for i := range 4 {
		t.op("VBROADCASTSD", fmt.Sprintf("%d(R10)", 8*i), zmm(16+i))
	}
	if r.bytes >= 4 {
		t.op("CMPQ", "past+56(FP)", "$0")
		t.op("JEQ", "loop")
		t.op("TESTQ", "$63", "DI")
		t.op("JZ", "past")
	}
	t.slopesLoop(r, "loop", false)
	t.finish()
	if r.bytes >= 4 {
		t.slopesLoop(r, "past", true)
		t.finish()
	}
}

func (t *text) slopesLoop(r row, label string, past bool) {
	t.label(label)
	t.widen(r, "(SI)", 0, 4, 5, 6)
	for i := range 2 {
		at := func(reg string) string { return fmt.Sprintf("%d(%s)", 64*i, reg) }
		t.op("VMULPD", at("BX"), zmm(16), zmm(i))
		t.op("VFMADD231PD", at("DX"), zmm(17), zmm(i))
		t.op("VFNMADD231PD", zmm(4+i), zmm(18), zmm(i))
		t.op("VMOVUPD", at("R9"), zmm(2+i))
		t.op("VFMADD231PD", zmm(4+i), zmm(19), zmm(2+i))
		t.op("VMOVUPD", zmm(2+i), at("R9"))
	}
	switch {
	case !past:
		t.store(r, 0, 1, "(DI)", 0)
	case r.bytes == 8:
		t.op("VMOVNTPD", zmm(0), "(DI)")
		t.op("VMOVNTPD", zmm(1), "64(DI)")
	default:
		t.op("VCVTPD2PS", zmm(0), ymm(28))
		t.op("VCVTPD2PS", zmm(1), ymm(29))
		t.op("VINSERTF64X4", "$1", ymm(29), zmm(28), zmm(28))
		t.op("VMOVNTPS", zmm(28), "(DI)")
	}
	t.step(r, "SI")
	t.step(r, "DI")
	for _, reg := range []string{"BX", "DX", "R9"} {
		t.op("ADDQ", "$128", reg)
	}
	t.op("SUBQ", "$16", "CX")
	t.op("JNZ", label)
}
