package main

import "fmt"

// quickKernels are the row operations of BlockAttnRes for 16-bit rows, in
// float32: n counts elements and is a multiple of 32. A token's rows are taken
// in one call, so that what the columns share stays in registers.
func quickKernels() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		q := quick{t, v}
		for _, r := range []row{{"BF16", 2}, {"F16", 2}} {
			q.sums(r, true)
			q.sums(r, false)
			q.mix(r)
			q.narrow(r, false)
			q.slopes(r, false)
			q.widenRow(r)
			q.binaries(r, false)
		}
		q.roots()
		q.exps()
		q.addWide()
	}
	fast := quick{t, avx512}
	fast.narrow(row{"BF16", 2}, true)
	fast.slopes(row{"BF16", 2}, true)
	fast.binaries(row{"BF16", 2}, true)
	t.function("quickFence", "func quickFence()", 0)
	t.op("SFENCE")
	t.op("RET")
	return t.String()
}

type quick struct {
	*text
	isa
}

func (q quick) r(i int) string { return fmt.Sprintf("%s%d", q.reg, i) }

// lanes is how many float32 a vector holds.
func (q quick) lanes() int { return q.bytes / 4 }

func (q quick) zero(i int) {
	q.op("VXORPS", fmt.Sprintf("X%d", i), fmt.Sprintf("X%d", i), fmt.Sprintf("X%d", i))
}

// load widens a vector of a row at an address to float32.
func (q quick) load(r row, at string, off, to int) {
	from := fmt.Sprintf("%d%s", off, at)
	if r.name == "F16" {
		q.op("VCVTPH2PS", from, q.r(to))
		return
	}
	q.op("VPMOVZXWD", from, q.r(to))
	q.op("VPSLLD", "$16", q.r(to), q.r(to))
}

// segment is how many elements 32 lanes sum before they are joined.
const segment = 1024

// sums are v.v and v.u of each row, or v.x and v.u: for each segment of a row in
// 32 lanes by index, joined by halves. The first half of what is at ahead is
// fetched into the cache meanwhile.
func (q quick) sums(r row, square bool) {
	name := "dots"
	if square {
		name = "squares"
	}
	name = "quick" + name + r.name + q.name
	q.begin(name, "(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)", 64,
		"rows+0(FP)", "R8", "ahead+8(FP)", "R15", "x+16(FP)", "BX", "u+24(FP)", "DX", "l+32(FP)", "R9", "n+40(FP)", "R10", "vx+48(FP)", "R11", "vu+56(FP)", "R12")
	vectors := 32 / q.lanes()
	v := 2 * vectors // the registers of the row
	q.label("row")
	q.op("MOVQ", "(R8)", "SI")
	q.op("MOVQ", "BX", "DI")
	q.op("MOVQ", "DX", "AX")
	q.op("MOVQ", "R10", "R14")
	q.op("MOVQ", "(R15)", "R13")
	for i := range 2 {
		q.zero(14 + i) // the sums
	}
	q.label("segment")
	q.op("MOVQ", fmt.Sprintf("$%d", segment), "CX")
	q.op("CMPQ", "R14", "CX")
	q.op("CMOVQLT", "R14", "CX")
	q.op("SUBQ", "CX", "R14")
	for i := range 2 * vectors {
		q.zero(i)
	}
	q.label("loop")
	q.op("PREFETCHT1", "(R13)")
	for i := range vectors {
		q.load(r, "(SI)", i*q.bytes/2, v+i)
	}
	for i := range vectors {
		x := q.r(v + i)
		if !square {
			x = fmt.Sprintf("%d(DI)", i*q.bytes)
		}
		q.op("VFMADD231PS", x, q.r(v+i), q.r(i))
		q.op("VFMADD231PS", fmt.Sprintf("%d(AX)", i*q.bytes), q.r(v+i), q.r(vectors+i))
	}
	q.op("ADDQ", "$64", "SI")
	q.op("ADDQ", "$32", "R13") // to its first half
	if !square {
		q.op("ADDQ", "$128", "DI")
	}
	q.op("ADDQ", "$128", "AX")
	q.op("SUBQ", "$32", "CX")
	q.op("JNZ", "loop")
	for i := range 2 {
		q.join(i*vectors, vectors, v)
		sum := fmt.Sprintf("X%d", 14+i)
		q.op("VADDSS", fmt.Sprintf("X%d", i*vectors), sum, sum)
	}
	q.op("TESTQ", "R14", "R14")
	q.op("JNZ", "segment")
	q.op("VMOVSS", "X14", "(R11)")
	q.op("VMOVSS", "X15", "(R12)")
	q.op("ADDQ", "$4", "R11")
	q.op("ADDQ", "$4", "R12")
	q.op("ADDQ", "$8", "R8")
	q.op("ADDQ", "$8", "R15")
	q.op("DECQ", "R9")
	q.op("JNZ", "row")
	q.finish()
}

// join adds the upper to the lower half of 32 lanes until one is left.
func (q quick) join(at, vectors, temp int) {
	for n := vectors / 2; n > 0; n /= 2 {
		for i := range n {
			q.op("VADDPS", q.r(at+n+i), q.r(at+i), q.r(at+i))
		}
	}
	x := func(i int) string { return fmt.Sprintf("X%d", i) }
	y := func(i int) string { return fmt.Sprintf("Y%d", i) }
	if q.lanes() == 16 {
		q.op("VEXTRACTF64X4", "$1", q.r(at), y(temp))
		q.op("VADDPS", y(temp), y(at), y(at))
	}
	q.op("VEXTRACTF128", "$1", y(at), x(temp))
	q.op("VADDPS", x(temp), x(at), x(at))
	q.op("VMOVHLPS", x(at), x(at), x(temp))
	q.op("VADDPS", x(temp), x(at), x(at))
	q.op("VMOVSHDUP", x(at), x(temp))
	q.op("VADDSS", x(temp), x(at), x(at))
}

// mix adds a[l] times each row to c h, or, where first is not 0, begins with the
// first product. What is at ahead is fetched into the cache meanwhile, a byte for
// each column from at on.
func (q quick) mix(r row) {
	name := "quickmix" + r.name + q.name
	q.begin(name, "(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)", 72,
		"h+0(FP)", "DI", "rows+8(FP)", "R8", "ahead+16(FP)", "R15", "a+24(FP)", "R9", "l+32(FP)", "R10", "at+40(FP)", "R13", "n+48(FP)", "CX", "first+64(FP)", "R12")
	q.op("LEAQ", "(R13)(R13*1)", "R11")
	q.op("VBROADCASTSS", "c+56(FP)", q.r(15))
	part := func(label string, vectors int) {
		columns := vectors * q.lanes()
		q.label(label)
		q.op("MOVQ", "R8", "SI")
		q.op("MOVQ", "R15", "R14")
		q.op("MOVQ", "R9", "DX")
		q.op("MOVQ", "R10", "BX")
		q.op("TESTQ", "R12", "R12")
		q.op("JZ", label+"more")
		q.op("MOVQ", "(SI)", "AX")
		q.op("ADDQ", "R11", "AX")
		q.op("VBROADCASTSS", "(DX)", q.r(8))
		for i := range vectors {
			q.load(r, "(AX)", i*q.bytes/2, 9+i)
			q.op("VMULPS", q.r(9+i), q.r(8), q.r(i))
		}
		q.op("JMP", label+"next")
		q.label(label + "more")
		for i := range vectors {
			q.op("VMULPS", fmt.Sprintf("%d(DI)", i*q.bytes), q.r(15), q.r(i))
		}
		q.label(label + "row")
		q.op("MOVQ", "(SI)", "AX")
		q.op("ADDQ", "R11", "AX")
		q.op("VBROADCASTSS", "(DX)", q.r(8))
		for i := range vectors {
			q.load(r, "(AX)", i*q.bytes/2, 9+i)
			q.op("VFMADD231PS", q.r(9+i), q.r(8), q.r(i))
		}
		q.label(label + "next")
		q.op("MOVQ", "(R14)", "AX")
		q.op("PREFETCHT1", "(AX)(R13*1)")
		q.op("ADDQ", "$8", "R14")
		q.op("ADDQ", "$8", "SI")
		q.op("ADDQ", "$4", "DX")
		q.op("DECQ", "BX")
		q.op("JNZ", label+"row")
		q.op("ADDQ", fmt.Sprintf("$%d", columns), "R13")
		for i := range vectors {
			q.op("VMOVUPS", q.r(i), fmt.Sprintf("%d(DI)", i*q.bytes))
		}
		q.op("ADDQ", fmt.Sprintf("$%d", 4*columns), "DI")
		q.op("ADDQ", fmt.Sprintf("$%d", 2*columns), "R11")
		q.op("SUBQ", fmt.Sprintf("$%d", columns), "CX")
	}
	if q.lanes() == 16 {
		q.op("CMPQ", "CX", "$64")
		q.op("JLT", "half")
		part("whole", 4)
		q.op("CMPQ", "CX", "$64")
		q.op("JGE", "whole")
		q.op("TESTQ", "CX", "CX")
		q.op("JZ", "done")
		part("half", 2)
		q.label("done")
	} else {
		part("whole", 4)
		q.op("TESTQ", "CX", "CX")
		q.op("JNZ", "whole")
	}
	q.finish()
}

// The constants of rounding to bfloat16, and where they are.
const (
	roundBias  = 29 // 0x7fff
	roundOne   = 30 // bit 16, or 1 in AVX2
	roundQuiet = 31 // what makes a NaN stay one
	roundIndex = 28 // the upper halves of two vectors
)

func (q quick) constants(r row) {
	if r.name != "BF16" {
		return
	}
	set := func(v string, to int) {
		q.op("MOVL", v, "AX")
		if q.lanes() == 16 {
			q.op("VPBROADCASTD", "AX", q.r(to))
			return
		}
		q.op("VMOVD", "AX", fmt.Sprintf("X%d", to))
		q.op("VPBROADCASTD", fmt.Sprintf("X%d", to), q.r(to))
	}
	if q.lanes() == 16 {
		set("$0x7fff", roundBias)
		set("$0x10000", roundOne)
		set("$0x400000", roundQuiet)
		q.op("VMOVDQU16", "·upperHalves(SB)", q.r(roundIndex))
		return
	}
	set("$0x7fff", 15)
	set("$0x400000", 14)
}

// move writes a vector; where a whole line of a cache is written past it,
// nontemporal is true.
func (q quick) move(at int, to string, nontemporal bool) {
	switch {
	case nontemporal:
		q.op("VMOVNTDQ", q.r(at), to)
	case q.lanes() == 16:
		q.op("VMOVDQU64", q.r(at), to)
	default:
		q.op("VMOVDQU", q.r(at), to)
	}
}

// round rounds the columns of two vectors, in consecutive registers from at on,
// once, to what is then in register temp; the next one is used too. NaN stays NaN.
func (q quick) round(r row, at, temp int) {
	y := func(i int) string { return fmt.Sprintf("Y%d", i) }
	x := func(i int) string { return fmt.Sprintf("X%d", i) }
	if q.lanes() == 16 {
		if r.name == "F16" {
			q.op("VCVTPS2PH", "$0", q.r(at), y(temp))
			q.op("VCVTPS2PH", "$0", q.r(at+1), y(temp+1))
			q.op("VINSERTI64X4", "$1", y(temp+1), q.r(temp), q.r(temp))
			return
		}
		for i := range 2 {
			q.op("VPTESTMD", q.r(roundOne), q.r(at+i), fmt.Sprintf("K%d", 1+i))
			q.op("VPADDD", q.r(roundBias), q.r(at+i), q.r(temp+i))
			q.op("VCMPPS", "$3", q.r(at+i), q.r(at+i), fmt.Sprintf("K%d", 3+i))
		}
		for i := range 2 {
			// Bit 16 set: one more, which is what the tie to even needs.
			q.op("VPSUBD", q.r(27), q.r(temp+i), fmt.Sprintf("K%d", 1+i), q.r(temp+i))
			q.op("VPORD", q.r(roundQuiet), q.r(at+i), fmt.Sprintf("K%d", 3+i), q.r(temp+i))
		}
		q.op("VPERMT2W", q.r(temp+1), q.r(roundIndex), q.r(temp))
		return
	}
	for i := range 2 {
		if r.name == "F16" {
			q.op("VCVTPS2PH", "$0", q.r(at+i), x(temp+i))
			continue
		}
		q.op("VPSRLD", "$16", q.r(at+i), q.r(temp+i))
		q.op("VPSLLD", "$31", q.r(temp+i), q.r(temp+i))
		q.op("VPSRLD", "$31", q.r(temp+i), q.r(temp+i))
		q.op("VPADDD", q.r(15), q.r(temp+i), q.r(temp+i))
		q.op("VPADDD", q.r(at+i), q.r(temp+i), q.r(temp+i))
		q.op("VCMPPS", "$3", q.r(at+i), q.r(at+i), q.r(13))
		q.op("VPOR", q.r(14), q.r(at+i), q.r(at+i))
		q.op("VBLENDVPS", q.r(13), q.r(at+i), q.r(temp+i), q.r(temp+i))
		q.op("VPSRLD", "$16", q.r(temp+i), q.r(temp+i))
	}
	if r.name == "F16" {
		q.op("VINSERTF128", "$1", x(temp+1), q.r(temp), q.r(temp))
	} else {
		q.op("VPACKUSDW", q.r(temp+1), q.r(temp), q.r(temp))
		q.op("VPERMQ", "$0xd8", q.r(temp), q.r(temp))
	}
}

// perStore is how many columns one store takes.
func (q quick) perStore() int { return 2 * q.lanes() }

// ones puts -1 in register 27, which round subtracts.
func (q quick) ones(r row) {
	if q.lanes() == 16 && r.name == "BF16" {
		q.op("VPTERNLOGD", "$0xff", q.r(27), q.r(27), q.r(27))
	}
}

// narrow rounds c h to a row.
func (q quick) narrow(r row, instruction bool) {
	name := "quicknarrow" + r.name + q.name + roundsBy(instruction)
	q.begin(name, "(to unsafe.Pointer, h *float32, c float32, n int)", 32, "to+0(FP)", "DI", "h+8(FP)", "SI", "n+24(FP)", "CX")
	q.constants(r)
	q.ones(r)
	q.op("VBROADCASTSS", "c+16(FP)", q.r(8))
	var slow []subnormals
	q.label("loop")
	for at := 0; at < 32; at += q.perStore() {
		for i := range 2 {
			q.op("VMULPS", fmt.Sprintf("%d(SI)", 4*at+i*q.bytes), q.r(8), q.r(i))
		}
		slow = append(slow, q.roundEither(r, 0, 4, "numbers", instruction)...)
		q.move(4, fmt.Sprintf("%d(DI)", 2*at), false)
	}
	q.op("ADDQ", "$128", "SI")
	q.op("ADDQ", "$64", "DI")
	q.op("SUBQ", "$32", "CX")
	q.op("JNZ", "loop")
	q.finish()
	q.roundSlowly(r, slow)
}

// roundsBy is what is added to the name of a kernel that rounds by an instruction.
func roundsBy(instruction bool) string {
	if instruction {
		return "BF16"
	}
	return ""
}

// subnormals is where numbers wait that an instruction cannot round.
type subnormals struct {
	label    string
	at, temp int
}

// roundEither is round, or, for two vectors of sixteen, an instruction, except
// where one of them has a subnormal number, which it would not keep: then what
// roundSlowly writes goes on at the label.
func (q quick) roundEither(r row, at, temp int, label string, instruction bool) []subnormals {
	if !instruction {
		q.round(r, at, temp)
		return nil
	}
	for k := range 2 {
		q.op("VFPCLASSPSZ", "$0x20", q.r(at+k), fmt.Sprintf("K%d", 1+k))
	}
	q.op("KORTESTW", "K1", "K2")
	q.op("JNZ", label+"slow")
	q.roundBF16(at, at+1, temp)
	q.label(label + "rounded")
	return []subnormals{{label, at, temp}}
}

// roundSlowly is written behind a kernel.
func (q quick) roundSlowly(r row, all []subnormals) {
	for _, part := range all {
		q.label(part.label + "slow")
		q.round(r, part.at, part.temp)
		q.op("JMP", part.label+"rounded")
	}
}

// slopes writes dv = c[0] g + c[1] u - c[2] v of each row and adds c[3] v to sum,
// for some columns at a time along the rows. What is at ahead is fetched as by mix.
func (q quick) slopes(r row, instruction bool) {
	name := "quickslopes" + r.name + q.name + roundsBy(instruction)
	q.begin(name, "(to, rows *unsafe.Pointer, ahead *uintptr, grad, u, sum *float32, c *[4]float32, l, at, n, past int)", 88,
		"to+0(FP)", "R8", "rows+8(FP)", "R9", "grad+24(FP)", "BX", "u+32(FP)", "DX", "sum+40(FP)", "R10", "c+48(FP)", "R11", "l+56(FP)", "R12", "at+64(FP)", "R13", "n+72(FP)", "CX")
	q.op("SHLQ", "$1", "R13")
	q.constants(r)
	q.ones(r)
	if q.lanes() == 16 { // 64 columns where there are
		q.op("CMPQ", "CX", "$64")
		q.op("JLT", "half")
		slow := q.slopesPart(r, "whole", 4, instruction)
		q.op("CMPQ", "CX", "$64")
		q.op("JGE", "whole")
		q.op("TESTQ", "CX", "CX")
		q.op("JZ", "done")
		slow = append(slow, q.slopesPart(r, "half", 2, instruction)...)
		q.label("done")
		q.finish()
		q.roundSlowly(r, slow)
		return
	}
	q.slopesPart(r, "whole", 2, false)
	q.op("TESTQ", "CX", "CX")
	q.op("JNZ", "whole")
	q.finish()
}

func (q quick) slopesPart(r row, label string, vectors int, instruction bool) (slow []subnormals) {
	columns := vectors * q.lanes()
	at := func(reg string, i int) string { return fmt.Sprintf("%d(%s)", i*q.bytes, reg) }
	// grad from 0, u from vectors, sum from 2 vectors, then v, dv and two more.
	u, sum, v := vectors, 2*vectors, 3*vectors
	dv, temp := v+2, v+4
	q.label(label)
	for i := range vectors {
		q.op("VMOVUPS", at("BX", i), q.r(i))
		q.op("VMOVUPS", at("DX", i), q.r(u+i))
		q.op("VMOVUPS", at("R10", i), q.r(sum+i))
	}
	q.op("XORQ", "SI", "SI") // the row
	q.op("MOVQ", "R11", "DI")
	q.label(label + "row")
	q.op("MOVQ", "(R9)(SI*8)", "AX")
	q.op("ADDQ", "R13", "AX")
	q.op("MOVQ", "ahead+16(FP)", "R14")
	q.op("MOVQ", "(R14)(SI*8)", "R14")
	q.op("MOVQ", "R13", "R15")
	q.op("SHRQ", "$1", "R15")
	q.op("PREFETCHT1", "(R14)(R15*1)")
	q.op("MOVQ", "(R8)(SI*8)", "R14")
	q.op("ADDQ", "R13", "R14")
	q.op("MOVQ", "past+80(FP)", "R15")
	for i := 0; i < vectors; i += 2 {
		for k := range 2 {
			q.load(r, "(AX)", (i+k)*q.bytes/2, v+k)
		}
		if q.lanes() == 16 {
			for k := range 2 {
				q.op("VMULPS.BCST", "(DI)", q.r(i+k), q.r(dv+k))
				q.op("VFMADD231PS.BCST", "4(DI)", q.r(u+i+k), q.r(dv+k))
				q.op("VFNMADD231PS.BCST", "8(DI)", q.r(v+k), q.r(dv+k))
				q.op("VFMADD231PS.BCST", "12(DI)", q.r(v+k), q.r(sum+i+k))
			}
		} else {
			for k, c := range []string{"(DI)", "4(DI)", "8(DI)", "12(DI)"} {
				q.op("VBROADCASTSS", c, q.r(temp))
				for j := range 2 {
					switch k {
					case 0:
						q.op("VMULPS", q.r(temp), q.r(i+j), q.r(dv+j))
					case 1:
						q.op("VFMADD231PS", q.r(temp), q.r(u+i+j), q.r(dv+j))
					case 2:
						q.op("VFNMADD231PS", q.r(temp), q.r(v+j), q.r(dv+j))
					default:
						q.op("VFMADD231PS", q.r(temp), q.r(v+j), q.r(sum+i+j))
					}
				}
			}
		}
		part := fmt.Sprintf("%s%d", label, i)
		slow = append(slow, q.roundEither(r, dv, temp, part, instruction)...)
		to := fmt.Sprintf("%d(R14)", i*q.bytes/2)
		q.op("TESTQ", "R15", "R15")
		q.op("JZ", part+"near")
		q.move(temp, to, true)
		q.op("JMP", part+"stored")
		q.label(part + "near")
		q.move(temp, to, false)
		q.label(part + "stored")
	}
	q.op("ADDQ", "$16", "DI")
	q.op("INCQ", "SI")
	q.op("CMPQ", "SI", "R12")
	q.op("JLT", label+"row")
	for i := range vectors {
		q.op("VMOVUPS", q.r(sum+i), at("R10", i))
	}
	for _, reg := range []string{"BX", "DX", "R10"} {
		q.op("ADDQ", fmt.Sprintf("$%d", 4*columns), reg)
	}
	q.op("ADDQ", fmt.Sprintf("$%d", 2*columns), "R13")
	q.op("SUBQ", fmt.Sprintf("$%d", columns), "CX")
	return slow
}

// widenRow is a row as float32; n is a multiple of 16.
func (q quick) widenRow(r row) {
	name := "quickwiden" + r.name + q.name
	q.begin(name, "(to *float32, from unsafe.Pointer, n int)", 24, "to+0(FP)", "DI", "from+8(FP)", "SI", "n+16(FP)", "CX")
	q.label("loop")
	for i := range 16 / q.lanes() {
		q.load(r, "(SI)", i*q.bytes/2, i)
		q.op("VMOVUPS", q.r(i), fmt.Sprintf("%d(DI)", i*q.bytes))
	}
	q.op("ADDQ", "$32", "SI")
	q.op("ADDQ", "$64", "DI")
	q.op("SUBQ", "$16", "CX")
	q.op("JNZ", "loop")
	q.finish()
}

// binaries are a op b of two rows, computed in float32 and rounded to a third; n
// is a multiple of 32. Of two NaNs that of a comes through.
func (q quick) binaries(r row, instruction bool) {
	for _, f := range []struct{ name, op string }{{"Add", "VADDPS"}, {"Sub", "VSUBPS"}, {"Mul", "VMULPS"}, {"Div", "VDIVPS"}} {
		q.begin("half"+f.name+r.name+q.name+roundsBy(instruction), "(to, a, b unsafe.Pointer, n int)", 32,
			"to+0(FP)", "DI", "a+8(FP)", "SI", "b+16(FP)", "DX", "n+24(FP)", "CX")
		q.constants(r)
		q.ones(r)
		var slow []subnormals
		q.label("loop")
		for at := 0; at < 32; at += q.perStore() {
			for i := range 2 {
				q.load(r, "(SI)", 2*at+i*q.bytes/2, i)
				q.load(r, "(DX)", 2*at+i*q.bytes/2, 2+i)
				q.op(f.op, q.r(2+i), q.r(i), q.r(i))
			}
			slow = append(slow, q.roundEither(r, 0, 4, "numbers", instruction)...)
			q.move(4, fmt.Sprintf("%d(DI)", 2*at), false)
		}
		for _, reg := range []string{"SI", "DX", "DI"} {
			q.op("ADDQ", "$64", reg)
		}
		q.op("SUBQ", "$32", "CX")
		q.op("JNZ", "loop")
		q.finish()
		q.roundSlowly(r, slow)
	}
}

// roots, for each of n (a multiple of 8) pairs of sums in float32: rms =
// sqrt(c[0] vv + c[1]) and key = vu / rms in float64.
func (q quick) roots() {
	name := "quickroots" + q.name
	q.begin(name, "(vv, vu *float32, c *[2]float64, n int, rms, key *float64)", 48,
		"vv+0(FP)", "SI", "vu+8(FP)", "DX", "c+16(FP)", "BX", "n+24(FP)", "CX", "rms+32(FP)", "DI", "key+40(FP)", "R8")
	q.op("VBROADCASTSD", "(BX)", q.r(4))
	q.op("VBROADCASTSD", "8(BX)", q.r(5))
	q.label("loop")
	q.op("VCVTPS2PD", "(SI)", q.r(0))
	q.op("VCVTPS2PD", "(DX)", q.r(1))
	q.op("VFMADD213PD", q.r(5), q.r(4), q.r(0))
	q.op("VSQRTPD", q.r(0), q.r(0))
	q.op("VDIVPD", q.r(0), q.r(1), q.r(1))
	q.op("VMOVUPD", q.r(0), "(DI)")
	q.op("VMOVUPD", q.r(1), "(R8)")
	for _, p := range []struct {
		reg   string
		bytes int
	}{{"SI", q.bytes / 2}, {"DX", q.bytes / 2}, {"DI", q.bytes}, {"R8", q.bytes}} {
		q.op("ADDQ", fmt.Sprintf("$%d", p.bytes), p.reg)
	}
	q.op("SUBQ", fmt.Sprintf("$%d", q.bytes/8), "CX")
	q.op("JNZ", "loop")
	q.finish()
}

// exp computes e to the power of each float64 of register x in place, as
// expNear in Go: two registers from temp on are used, and the table of
// constants is at AX.
func (q quick) exp(x, temp int) {
	k, p := q.r(temp), q.r(temp+1)
	q.expParts(x, temp)
	q.op("VFMADD213PD", c(6+expDegree), q.r(x), p)
	q.op("VMULPD", k, p, q.r(x)) // and not an addition of bits, which would end a NaN
}

// expm1 computes e to the power less 1, as expm1Near in Go.
func (q quick) expm1(x, temp int) {
	k, p := q.r(temp), q.r(temp+1)
	q.expParts(x, temp)
	q.op("VMULPD", q.r(x), p, p)
	q.op("VSUBPD", c(mapOne), k, q.r(x))
	q.op("VFMADD231PD", k, p, q.r(x))
}

// expParts is a power of two in register temp, the rest r of the exponent in x,
// and (e^r - 1)/r in the next.
func (q quick) expParts(x, temp int) {
	k, p := q.r(temp), q.r(temp+1)
	// A NaN is the second source and so the result.
	q.op("VMOVUPD", c(0), p)
	q.op("VMAXPD", q.r(x), p, q.r(x))
	q.op("VMOVUPD", c(1), p)
	q.op("VMINPD", q.r(x), p, q.r(x))
	q.op("VMOVUPD", c(2), k)
	q.op("VMOVUPD", c(3), p)
	q.op("VFMADD213PD", p, q.r(x), k) // x log2(e) + shift
	q.op("VSUBPD", p, k, p)           // as a whole number
	q.op("VFNMADD231PD", c(4), p, q.r(x))
	q.op("VFNMADD231PD", c(5), p, q.r(x))
	q.op("VPSLLQ", "$52", k, k)
	q.op("VMOVUPD", c(6), p)
	for i := 7; i < 6+expDegree; i++ {
		q.op("VFMADD213PD", c(i), q.r(x), p)
	}
	q.op("VPADDQ", c(mapOne), k, k) // a power of two, for the bits of 1 have the exponent's bias
}

// expDegree is that of the polynomial, whose coefficients follow in the table,
// the highest first.
const expDegree = 9

// exps sets e to exp(c[0] x - c[1]) for n numbers, a multiple of 8.
func (q quick) exps() {
	name := "quickexps" + q.name
	q.begin(name, "(e, x *float64, c *[2]float64, n int)", 32, "e+0(FP)", "DI", "x+8(FP)", "SI", "c+16(FP)", "BX", "n+24(FP)", "CX")
	q.op("LEAQ", "·expTable(SB)", "AX")
	q.op("VBROADCASTSD", "(BX)", q.r(4))
	q.op("VBROADCASTSD", "8(BX)", q.r(5))
	q.label("loop")
	q.op("VMULPD", "(SI)", q.r(4), q.r(0))
	q.op("VSUBPD", q.r(5), q.r(0), q.r(0))
	q.exp(0, 1)
	q.op("VMOVUPD", q.r(0), "(DI)")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes), "SI")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes), "DI")
	q.op("SUBQ", fmt.Sprintf("$%d", q.bytes/8), "CX")
	q.op("JNZ", "loop")
	q.finish()
}

// addWide adds n float32, a multiple of 32, to float64.
func (q quick) addWide() {
	name := "quickadd" + q.name
	q.begin(name, "(sum *float64, x *float32, n int)", 24, "sum+0(FP)", "DI", "x+8(FP)", "SI", "n+16(FP)", "CX")
	q.label("loop")
	q.op("VCVTPS2PD", "(SI)", q.r(0))
	q.op("VADDPD", "(DI)", q.r(0), q.r(0))
	q.op("VMOVUPD", q.r(0), "(DI)")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes/2), "SI")
	q.op("ADDQ", fmt.Sprintf("$%d", q.bytes), "DI")
	q.op("SUBQ", fmt.Sprintf("$%d", q.bytes/8), "CX")
	q.op("JNZ", "loop")
	q.finish()
}
