package main

import "fmt"

// vectors are small loops over rows of float32, n being a multiple of 16: what
// elementwise operations, reductions and attention do to a row.
func vectors() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		q := quick{t, v}
		for _, f := range []string{"ADD", "SUB", "MUL", "DIV"} {
			q.binary(f)
		}
		q.topRow()
		q.dotRow()
		q.foldRow("sum", false)
		q.foldRow("squares", true)
		q.slopeRow()
		q.scaleRow()
		q.shiftRow()
		q.subtractRow()
		q.rotateRows()
		for _, r := range []row{{"BF16", 2}, {"F16", 2}, {"F32", 4}} {
			q.widenRows(r)
			q.sumRows(r)
		}
		for _, r := range []row{{"BF16", 2}, {"F16", 2}} {
			q.narrowRows(r, false)
		}
	}
	quick{t, avx512}.narrowRows(row{"BF16", 2}, true)
	t.function("pause", "func pause()", 0)
	for range 8 {
		t.op("PAUSE")
	}
	t.op("RET")
	return t.String()
}

// whole unrolls body over the vectors of sixteen float32.
func (q quick) whole(body func(i int)) {
	for i := range 16 / q.lanes() {
		body(i)
	}
}

func at(reg string, off int) string { return fmt.Sprintf("%d(%s)", off, reg) }

// binary sets out to an operation on a and b.
func (q quick) binary(f string) {
	name := "row" + f[:1] + map[string]string{"ADD": "dd", "SUB": "ub", "MUL": "ul", "DIV": "iv"}[f] + q.name
	q.begin(name, "(out, a, b *float32, n int)", 32, "out+0(FP)", "DI", "a+8(FP)", "SI", "b+16(FP)", "DX", "n+24(FP)", "CX")
	q.label("loop")
	q.whole(func(i int) { q.op("VMOVUPS", at("SI", i*q.bytes), q.r(i)) })
	q.whole(func(i int) { q.op("V"+f+"PS", at("DX", i*q.bytes), q.r(i), q.r(i)) })
	q.whole(func(i int) { q.op("VMOVUPS", q.r(i), at("DI", i*q.bytes)) })
	q.step16([]string{"SI", "DX", "DI"}, nil)
	q.finish()
}

// topRow sets sixteen lanes by index to x where that is larger; a NaN is not.
func (q quick) topRow() {
	q.begin("top"+q.name, "(x *float32, n int, lanes *[16]float32)", 24, "x+0(FP)", "SI", "n+8(FP)", "CX", "lanes+16(FP)", "DX")
	q.whole(func(i int) { q.op("VMOVUPS", at("DX", i*q.bytes), q.r(i)) })
	q.label("loop")
	q.whole(func(i int) {
		q.op("VMOVUPS", at("SI", i*q.bytes), q.r(4+i))
		q.op("VMAXPS", q.r(i), q.r(4+i), q.r(i)) // x > lane ? x : lane
	})
	q.step16([]string{"SI"}, nil)
	q.whole(func(i int) { q.op("VMOVUPS", q.r(i), at("DX", i*q.bytes)) })
	q.finish()
}

// dotRow adds a b, exact in float64, to sixteen lanes by index.
func (q quick) dotRow() {
	q.begin("dotRow"+q.name, "(a, b *float32, n int, lanes *[16]float64)", 32, "a+0(FP)", "SI", "b+8(FP)", "DX", "n+16(FP)", "CX", "lanes+24(FP)", "DI")
	q.each(func(i int) { q.op("VMOVUPD", q.wide("DI", i), q.r(4+i)) })
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("SI", i), q.r(0))
		q.op("VCVTPS2PD", q.single("DX", i), q.r(1))
		q.op("VFMADD231PD", q.r(0), q.r(1), q.r(4+i))
	})
	q.step16([]string{"SI", "DX"}, nil)
	q.each(func(i int) { q.op("VMOVUPD", q.r(4+i), q.wide("DI", i)) })
	q.finish()
}

// foldRow adds x, or its square, which is exact in float64, to eight lanes by index.
func (q quick) foldRow(name string, square bool) {
	q.begin(name+"Row"+q.name, "(x *float32, n int, lanes *[8]float64)", 24, "x+0(FP)", "SI", "n+8(FP)", "CX", "lanes+16(FP)", "DI")
	vectors := 64 / q.bytes
	for i := range vectors {
		q.op("VMOVUPD", at("DI", i*q.bytes), q.r(4+i))
	}
	q.label("loop")
	for i := range 2 * vectors {
		q.op("VCVTPS2PD", at("SI", i*q.bytes/2), q.r(i))
	}
	for i := range 2 * vectors {
		sum := q.r(4 + i%vectors)
		if square {
			q.op("VFMADD231PD", q.r(i), q.r(i), sum)
		} else {
			q.op("VADDPD", q.r(i), sum, sum)
		}
	}
	q.step16([]string{"SI"}, nil)
	for i := range vectors {
		q.op("VMOVUPD", q.r(4+i), at("DI", i*q.bytes))
	}
	q.finish()
}

// sumRows adds rows of n elements, stride bytes apart, to the eight lanes in
// turn: float64 that begin ld apart. Rows that follow are fetched.
func (q quick) sumRows(r row) {
	q.begin("sumRows"+r.name+q.name, "(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)", 48,
		"sums+0(FP)", "R8", "ld+8(FP)", "R9", "x+16(FP)", "R10", "stride+24(FP)", "R11", "rows+32(FP)", "R12", "n+40(FP)", "R13")
	q.op("SHLQ", "$3", "R9")
	q.op("LEAQ", fmt.Sprintf("(R10)(R11*%d)", aheadRows), "R14")
	q.label("again")
	q.op("MOVQ", "R8", "BX")
	q.op("MOVQ", "$8", "AX")
	q.label("row")
	q.op("MOVQ", "R10", "SI")
	q.op("MOVQ", "R14", "DX")
	q.op("MOVQ", "BX", "DI")
	q.op("MOVQ", "R13", "CX")
	q.label("loop")
	q.op("PREFETCHT0", "(DX)")
	if r.bytes == 4 {
		q.each(func(i int) { q.op("VCVTPS2PD", q.single("SI", i), q.r(i)) })
	} else {
		q.whole(func(i int) { // two vectors of float64 from one of float32
			whole, first := 4+i, 2*i
			q.load(r, "(SI)", i*q.bytes/2, whole)
			q.op("VCVTPS2PD", q.halfReg(whole), q.r(first))
			if q.lanes() == 16 {
				q.op("VEXTRACTF64X4", "$1", q.r(whole), q.halfReg(whole))
			} else {
				q.op("VEXTRACTF128", "$1", q.r(whole), q.halfReg(whole))
			}
			q.op("VCVTPS2PD", q.halfReg(whole), q.r(first+1))
		})
	}
	q.each(func(i int) { q.op("VADDPD", q.wide("DI", i), q.r(i), q.r(i)) })
	q.each(func(i int) { q.op("VMOVUPD", q.r(i), q.wide("DI", i)) })
	for _, reg := range []string{"SI", "DX"} {
		q.op("ADDQ", fmt.Sprintf("$%d", 16*r.bytes), reg)
	}
	q.op("ADDQ", "$128", "DI")
	q.again()
	for _, reg := range []string{"R10", "R14"} {
		q.op("ADDQ", "R11", reg)
	}
	q.op("ADDQ", "R9", "BX")
	q.op("DECQ", "R12")
	q.op("JZ", "done")
	q.op("DECQ", "AX")
	q.op("JNZ", "row")
	q.op("JMP", "again")
	q.label("done")
	q.finish()
}

// slopeRow sets t to p (t - c[0]) c[1].
func (q quick) slopeRow() {
	q.begin("slopeRow"+q.name, "(t, p *float32, c *[2]float64, n int)", 32, "t+0(FP)", "DI", "p+8(FP)", "SI", "c+16(FP)", "BX", "n+24(FP)", "CX")
	q.op("VBROADCASTSD", "(BX)", q.r(6))
	q.op("VBROADCASTSD", "8(BX)", q.r(7))
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("DI", i), q.r(0))
		q.op("VCVTPS2PD", q.single("SI", i), q.r(1))
		q.op("VSUBPD", q.r(6), q.r(0), q.r(0))
		q.op("VMULPD", q.r(1), q.r(0), q.r(0))
		q.op("VMULPD", q.r(7), q.r(0), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI", "SI"}, nil)
	q.finish()
}

// scaleRow sets x to c x, in float64.
func (q quick) scaleRow() {
	q.begin("scaleRow"+q.name, "(x *float32, c *float64, n int)", 24, "x+0(FP)", "DI", "c+8(FP)", "BX", "n+16(FP)", "CX")
	q.op("VBROADCASTSD", "(BX)", q.r(7))
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("DI", i), q.r(0))
		q.op("VMULPD", q.r(7), q.r(0), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI"}, nil)
	q.finish()
}

// shiftRow sets y to x - c[0] - c[1], in float64.
func (q quick) shiftRow() {
	q.begin("shiftRow"+q.name, "(y, x *float32, c *[2]float64, n int)", 32, "y+0(FP)", "DI", "x+8(FP)", "SI", "c+16(FP)", "BX", "n+24(FP)", "CX")
	q.op("VBROADCASTSD", "(BX)", q.r(7))
	q.op("VBROADCASTSD", "8(BX)", q.r(6))
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("SI", i), q.r(0))
		q.op("VSUBPD", q.r(7), q.r(0), q.r(0))
		q.op("VSUBPD", q.r(6), q.r(0), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI", "SI"}, nil)
	q.finish()
}

// subtractRow sets t to t - c p, in float64.
func (q quick) subtractRow() {
	q.begin("subtractRow"+q.name, "(t, p *float32, c *float64, n int)", 32, "t+0(FP)", "DI", "p+8(FP)", "SI", "c+16(FP)", "BX", "n+24(FP)", "CX")
	q.op("VBROADCASTSD", "(BX)", q.r(7))
	q.label("loop")
	q.each(func(i int) {
		q.op("VCVTPS2PD", q.single("DI", i), q.r(0))
		q.op("VCVTPS2PD", q.single("SI", i), q.r(1))
		q.op("VFNMADD231PD", q.r(7), q.r(1), q.r(0))
		q.toFloat32(0)
		q.op("VMOVUPS", q.halfReg(0), q.single("DI", i))
	})
	q.step16([]string{"DI", "SI"}, nil)
	q.finish()
}

// aheadRows is how far ahead of the row that is read another is fetched.
const aheadRows = 8

// widenRows reads rows of n elements that lie stride bytes apart as float32, one
// behind another, and fetches those that follow.
func (q quick) widenRows(r row) {
	q.begin("widenRows"+r.name+q.name, "(to *float32, from unsafe.Pointer, stride, rows, n int)", 40,
		"to+0(FP)", "DI", "from+8(FP)", "R8", "stride+16(FP)", "R9", "rows+24(FP)", "R10", "n+32(FP)", "R11")
	q.op("LEAQ", fmt.Sprintf("(R8)(R9*%d)", aheadRows), "R12")
	q.label("row")
	q.op("MOVQ", "R8", "SI")
	q.op("MOVQ", "R12", "DX")
	q.op("MOVQ", "R11", "CX")
	q.label("loop")
	q.op("PREFETCHT0", "(DX)")
	q.whole(func(i int) {
		if r.bytes == 4 {
			q.op("VMOVUPS", at("SI", i*q.bytes), q.r(i))
		} else {
			q.load(r, "(SI)", i*q.bytes/2, i)
		}
		q.op("VMOVUPS", q.r(i), at("DI", i*q.bytes))
	})
	q.op("ADDQ", fmt.Sprintf("$%d", 16*r.bytes), "SI")
	q.op("ADDQ", fmt.Sprintf("$%d", 16*r.bytes), "DX")
	q.op("ADDQ", "$64", "DI")
	q.again()
	q.op("ADDQ", "R9", "R8")
	q.op("ADDQ", "R9", "R12")
	q.op("DECQ", "R10")
	q.op("JNZ", "row")
	q.finish()
}

// narrowRows rounds rows of n elements, ld elements apart, to rows that lie
// stride bytes apart; n is a multiple of 32.
func (q quick) narrowRows(r row, instruction bool) {
	q.begin("narrowRows"+r.name+q.name+roundsBy(instruction), "(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)", 48,
		"to+0(FP)", "R8", "stride+8(FP)", "R9", "from+16(FP)", "R10", "ld+24(FP)", "R11", "rows+32(FP)", "R12", "n+40(FP)", "R13")
	q.constants(r)
	q.ones(r)
	q.op("SHLQ", "$2", "R11")
	q.label("row")
	q.op("MOVQ", "R8", "DI")
	q.op("MOVQ", "R10", "SI")
	q.op("MOVQ", "R13", "CX")
	var slow []subnormals
	q.label("loop")
	for at := 0; at < 32; at += q.perStore() {
		for i := range 2 {
			q.op("VMOVUPS", fmt.Sprintf("%d(SI)", 4*at+i*q.bytes), q.r(i))
		}
		slow = append(slow, q.roundEither(r, 0, 4, "numbers", instruction)...)
		q.move(4, fmt.Sprintf("%d(DI)", 2*at), false)
	}
	q.op("ADDQ", "$128", "SI")
	q.op("ADDQ", "$64", "DI")
	q.op("SUBQ", "$32", "CX")
	q.op("JNZ", "loop")
	q.op("ADDQ", "R9", "R8")
	q.op("ADDQ", "R11", "R10")
	q.op("DECQ", "R12")
	q.op("JNZ", "row")
	q.finish()
	q.roundSlowly(r, slow)
}

// rotateRows turns the pairs of two halves of rows: out = (a cos - b sin,
// b cos + a sin), with sin times the sign, for n of each half's columns.
func (q quick) rotateRows() {
	q.begin("rotateRows"+q.name, "(out, x, cos, sin, sign *float32, half, rows, n int)", 64,
		"out+0(FP)", "R8", "x+8(FP)", "R9", "cos+16(FP)", "R10", "sin+24(FP)", "R11", "sign+32(FP)", "AX", "half+40(FP)", "R12", "rows+48(FP)", "R13")
	q.op("VBROADCASTSS", "(AX)", q.r(7))
	q.op("SHLQ", "$2", "R12")
	q.label("row")
	for _, move := range [][2]string{{"R8", "DI"}, {"R9", "SI"}, {"R10", "BX"}, {"R11", "DX"}} {
		q.op("MOVQ", move[0], move[1])
	}
	q.op("MOVQ", "n+56(FP)", "CX")
	q.label("loop")
	q.whole(func(i int) {
		off := i * q.bytes
		second := func(reg string) string { return fmt.Sprintf("%d(%s)(R12*1)", off, reg) }
		q.op("VMOVUPS", at("SI", off), q.r(0))
		q.op("VMOVUPS", second("SI"), q.r(1))
		q.op("VMOVUPS", at("BX", off), q.r(2))
		q.op("VMULPS", at("DX", off), q.r(7), q.r(3))
		q.op("VMULPS", q.r(0), q.r(2), q.r(4))
		q.op("VMULPS", q.r(1), q.r(3), q.r(5))
		q.op("VSUBPS", q.r(5), q.r(4), q.r(4))
		q.op("VMOVUPS", q.r(4), at("DI", off))
		q.op("VMULPS", q.r(1), q.r(2), q.r(4))
		q.op("VMULPS", q.r(0), q.r(3), q.r(5))
		q.op("VADDPS", q.r(5), q.r(4), q.r(4))
		q.op("VMOVUPS", q.r(4), second("DI"))
	})
	q.step16([]string{"DI", "SI", "BX", "DX"}, nil)
	for _, r := range []string{"R8", "R9"} {
		q.op("LEAQ", "("+r+")(R12*2)", r)
	}
	for _, r := range []string{"R10", "R11"} {
		q.op("ADDQ", "R12", r)
	}
	q.op("DECQ", "R13")
	q.op("JNZ", "row")
	q.finish()
}
