package main

import "fmt"

// neonGemms are the micro-kernels of the matrix product for arm64, as gemms are
// for amd64: two vectors of columns, each element in one accumulator.
func neonGemms() string {
	t := newText()
	for _, e := range []elem{f32, f64} {
		for _, rows := range []int{8, 4, 2, 1} {
			t.neonGemm(e, rows)
		}
	}
	return t.String()
}

// neonGemm keeps the sums in V0 to V15, the columns of b in V16 and V17 and an
// element of a in V18 to V25; a row of a has a register from R4 on.
func (t *text) neonGemm(e elem, rows int) {
	const vectors = 2
	kind := map[int]string{4: "S4", 8: "D2"}[e.bytes]
	shift := fmt.Sprintf("$%d", map[int]int{4: 2, 8: 3}[e.bytes])
	v := func(i int) string { return fmt.Sprintf("V%d.%s", i, kind) }
	row := func(i int) string { return fmt.Sprintf("R%d", 4+i) }
	name := fmt.Sprintf("gemm%sNEONx%d", e.name, rows)
	t.function(name, fmt.Sprintf("func %s(c *%s, ldc int, a *%s, ars, acs int, b *%s, bks, k int, add bool)", name, e.goName(), e.goName(), e.goName()), 65)
	t.op("MOVD", "c+0(FP)", "R0")
	t.op("MOVD", "ldc+8(FP)", "R1")
	t.op("MOVD", "a+16(FP)", "R4")
	t.op("MOVD", "ars+24(FP)", "R2")
	t.op("MOVD", "acs+32(FP)", "R3")
	t.op("MOVD", "b+40(FP)", "R12")
	t.op("MOVD", "bks+48(FP)", "R13")
	t.op("MOVD", "k+56(FP)", "R14")
	t.op("MOVBU", "add+64(FP)", "R15")
	for _, r := range []string{"R1", "R2", "R3", "R13"} {
		t.op("LSL", shift, r, r)
	}
	for i := 1; i < rows; i++ {
		t.op("ADD", "R2", row(i-1), row(i))
	}
	zero := func(i int) {
		r := fmt.Sprintf("V%d.B16", i)
		t.op("VEOR", r, r, r)
	}
	for i := range rows * vectors {
		zero(i)
	}
	t.label("loop")
	t.op("VLD1", "(R12)", fmt.Sprintf("[%s, %s]", v(16), v(17)))
	t.op("ADD", "R13", "R12", "R12")
	for i := range rows {
		t.op("VLD1R.P", fmt.Sprintf("(%s)(R3)", row(i)), fmt.Sprintf("[%s]", v(18+i)))
	}
	for i := range rows {
		for j := range vectors {
			t.op("VFMLA", v(18+i), v(16+j), v(i*vectors+j))
		}
	}
	t.op("SUBS", "$1", "R14", "R14")
	t.op("BNE", "loop")
	zero(16) // 0 + -0 is 0, as it is where c was cleared
	zero(17)
	for i := range rows {
		t.op("CBZ", "R15", fmt.Sprintf("set%d", i))
		t.op("VLD1", "(R0)", fmt.Sprintf("[%s, %s]", v(16), v(17)))
		t.label(fmt.Sprintf("set%d", i))
		for j := range vectors {
			t.fadd(e, 16+j, i*vectors+j, i*vectors+j)
		}
		t.op("VST1", fmt.Sprintf("[%s, %s]", v(i*vectors), v(i*vectors+1)), "(R0)")
		if i < rows-1 {
			t.op("ADD", "R1", "R0", "R0")
		}
	}
	t.op("RET")
}

// fadd adds two vectors; the assembler has no name for it.
func (t *text) fadd(e elem, x, y, to int) {
	word := 0x4e20d400
	if e.bytes == 8 {
		word = 0x4e60d400
	}
	fmt.Fprintf(t, "\tWORD $%#08x // FADD V%d, V%d, V%d\n", word|y<<16|x<<5|to, x, y, to)
}

// neonPeak is the loop that bench measures the limit of arm64 with.
func neonPeak() string {
	const count = 24
	t := newText()
	t.function("peakF32NEON", "func peakF32NEON(times int)", 8)
	t.op("MOVD", "times+0(FP)", "R0")
	for _, i := range append(numbers(count), 30, 31) {
		r := fmt.Sprintf("V%d.B16", i)
		t.op("VEOR", r, r, r)
	}
	t.label("loop")
	for i := range count {
		t.op("VFMLA", "V30.S4", "V31.S4", fmt.Sprintf("V%d.S4", i))
	}
	t.op("SUBS", "$1", "R0", "R0")
	t.op("BNE", "loop")
	t.op("RET")
	return t.String()
}

func numbers(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i
	}
	return x
}
