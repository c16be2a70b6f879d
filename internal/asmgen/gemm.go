package main

import "fmt"

// gemms are the micro-kernels of the matrix product: they set a tile of c to, or
// add to it, the product of some rows of a and columns of b, each element in one
// accumulator from 0 over k in order, by fused multiply-adds.
func gemms() string {
	t := newText()
	for _, k := range []struct {
		isa  isa
		elem elem
		rows []int
	}{{avx512, f32, []int{8, 4, 2, 1}}, {avx512, f64, []int{8, 4, 2, 1}}, {avx2, f32, []int{6, 4, 2, 1}}, {avx2, f64, []int{6, 4, 2, 1}}} {
		for _, rows := range k.rows {
			t.gemm(k.isa, k.elem, rows, 2)
			t.gemm(k.isa, k.elem, rows, 1)
		}
	}
	for _, rows := range []int{8, 4, 2, 1} {
		t.gemm(avx512, bf16, rows, 2)
		t.gemm(avx512, bf16, rows, 1)
	}
	t.transpose()
	t.copyRows()
	t.pairs()
	return t.String()
}

// gemm has two vectors of columns, or half a tile's: one. Of bfloat16, an element of a and b is a word
// of two numbers, whose products are both added. Element (i,k) of a is at a + i*ars + k*acs,
// and the columns of the tile for each k at b + k*bks.
func (t *text) gemm(v isa, e elem, rows, vectors int) {
	reg := func(i int) string { return fmt.Sprintf("%s%d", v.reg, i) }
	acc := func(i, j int) string { return reg(i*vectors + j) }
	b := func(j int) string { return reg(rows*vectors + j) }
	broadcasts := min(v.count-(rows+1)*vectors, 4)
	a := func(i int) string { return reg((rows+1)*vectors + i%broadcasts) }
	scale := fmt.Sprintf("$%d", map[int]int{4: 2, 8: 3}[e.bytes])

	name := fmt.Sprintf("gemm%s%sx%d%s", e.name, v.name, rows, map[int]string{1: "half"}[vectors])
	t.function(name, fmt.Sprintf("func %s(c *%s, ldc int, a *%s, ars, acs int, b *%s, bks, k int, add bool)", name, e.goName(), e.goName(), e.goName()), 65)
	t.op("MOVQ", "c+0(FP)", "DI")
	t.op("MOVQ", "ldc+8(FP)", "SI")
	t.op("MOVQ", "a+16(FP)", "R8")
	t.op("MOVQ", "ars+24(FP)", "R9")
	t.op("MOVQ", "acs+32(FP)", "R10")
	t.op("MOVQ", "b+40(FP)", "DX")
	t.op("MOVQ", "bks+48(FP)", "BX")
	t.op("MOVQ", "k+56(FP)", "CX")
	for _, r := range []string{"SI", "R9", "R10", "BX"} {
		t.op("SHLQ", scale, r)
	}
	// Rows 0, 3 and 6 have a register; the others are a multiple of the stride away.
	if rows > 3 {
		t.op("LEAQ", "(R9)(R9*2)", "R11") // 3 rows
		t.op("LEAQ", "(R8)(R11*1)", "R12")
	}
	if rows > 6 {
		t.op("LEAQ", "(R12)(R11*1)", "R13")
	}
	base := func(i int) string { return []string{"R8", "R12", "R13"}[i/3] }
	row := func(i int) string {
		return "(" + base(i) + ")" + []string{"", "(R9*1)", "(R9*2)"}[i%3]
	}
	zero := func(r string) { t.op(map[string]string{"Y": "VXORPS", "Z": "VPXORQ"}[v.reg], r, r, r) }
	for i := range rows {
		for j := range vectors {
			zero(acc(i, j))
		}
	}
	t.label("loop")
	for j := range vectors {
		t.op("VMOVU"+e.suffix, fmt.Sprintf("%d(DX)", j*v.bytes), b(j))
	}
	for i := range rows {
		t.op(map[int]string{4: "VBROADCASTSS", 8: "VBROADCASTSD"}[e.bytes], row(i), a(i))
		for j := range vectors {
			if e.name == "BF16" {
				t.dotBF16(rows*vectors+j, (rows+1)*vectors+i%broadcasts, i*vectors+j)
				continue
			}
			t.op("VFMADD231"+e.suffix, b(j), a(i), acc(i, j))
		}
	}
	t.op("ADDQ", "BX", "DX")
	for i := 0; i < rows; i += 3 {
		t.op("ADDQ", "R10", base(i))
	}
	t.op("DECQ", "CX")
	t.op("JNZ", "loop")
	end := func(to func(at string, j int) string) {
		for i := range rows {
			for j := range vectors {
				at := fmt.Sprintf("%d(DI)", j*v.bytes)
				t.op("VADD"+e.suffix, to(at, j), acc(i, j), acc(i, j))
				t.op("VMOVU"+e.suffix, acc(i, j), at)
			}
			if i < rows-1 {
				t.op("ADDQ", "SI", "DI")
			}
		}
		t.finish()
	}
	t.op("MOVBLZX", "add+64(FP)", "AX")
	t.op("TESTL", "AX", "AX")
	t.op("JNZ", "add")
	zero(b(0)) // 0 + -0 is 0, as it is where c was cleared
	end(func(string, int) string { return b(0) })
	t.label("add")
	end(func(at string, _ int) string { return at })
}

// transpose writes 16 rows of 16n elements as 16n rows of 16.
func (t *text) transpose() {
	z := func(i int) string { return fmt.Sprintf("Z%d", i) }
	t.function("transposeF32AVX512", "func transposeF32AVX512(to *float32, stride int, from *float32, ld, n int)", 40)
	t.op("MOVQ", "to+0(FP)", "DI")
	t.op("MOVQ", "stride+8(FP)", "SI")
	t.op("MOVQ", "from+16(FP)", "R8")
	t.op("MOVQ", "ld+24(FP)", "R9")
	t.op("MOVQ", "n+32(FP)", "CX")
	t.op("SHLQ", "$2", "SI")
	t.op("SHLQ", "$2", "R9")
	t.op("LEAQ", "(R9)(R9*2)", "R10")
	t.op("LEAQ", "(SI)(SI*2)", "R11")
	t.label("loop")
	// Rows 0 to 15 in Z0 to Z15.
	t.op("MOVQ", "R8", "R12")
	for i := 0; i < 16; i += 4 {
		for j, at := range []string{"(R12)", "(R12)(R9*1)", "(R12)(R9*2)", "(R12)(R10*1)"} {
			t.op("VMOVUPS", at, z(i+j))
		}
		if i < 12 {
			t.op("LEAQ", "(R12)(R9*4)", "R12")
		}
	}
	t.transpose16()
	for i := 0; i < 16; i += 4 {
		for j, at := range []string{"(DI)", "(DI)(SI*1)", "(DI)(SI*2)", "(DI)(R11*1)"} {
			t.op("VMOVUPS", z(i+j), at)
		}
		t.op("LEAQ", "(DI)(SI*4)", "DI")
	}
	t.op("ADDQ", "$64", "R8")
	t.op("DECQ", "CX")
	t.op("JNZ", "loop")
	t.op("VZEROUPPER")
	t.op("RET")
}

// transpose16 makes the rows of sixteen words in Z0 to Z15 columns, by Z16 to Z31.
func (t *text) transpose16() {
	z := func(i int) string { return fmt.Sprintf("Z%d", i) }
	// Pairs of rows, element by element; then pairs of pairs.
	for i := 0; i < 16; i += 2 {
		t.op("VUNPCKLPS", z(i+1), z(i), z(16+i))
		t.op("VUNPCKHPS", z(i+1), z(i), z(17+i))
	}
	for i := 0; i < 16; i += 4 {
		// Column c of the four rows, in each quarter q the column 4q + c.
		t.op("VUNPCKLPD", z(16+i+2), z(16+i), z(i))
		t.op("VUNPCKHPD", z(16+i+2), z(16+i), z(i+1))
		t.op("VUNPCKLPD", z(16+i+3), z(16+i+1), z(i+2))
		t.op("VUNPCKHPD", z(16+i+3), z(16+i+1), z(i+3))
	}
	for c := range 4 {
		// Quarters 0 and 2, then 1 and 3, of rows 0-7 and of rows 8-15.
		t.op("VSHUFF32X4", "$0x88", z(4+c), z(c), z(16+c))
		t.op("VSHUFF32X4", "$0xdd", z(4+c), z(c), z(20+c))
		t.op("VSHUFF32X4", "$0x88", z(12+c), z(8+c), z(24+c))
		t.op("VSHUFF32X4", "$0xdd", z(12+c), z(8+c), z(28+c))
	}
	for c := range 4 {
		t.op("VSHUFF32X4", "$0x88", z(24+c), z(16+c), z(c))    // columns c
		t.op("VSHUFF32X4", "$0x88", z(28+c), z(20+c), z(4+c))  // 4 + c
		t.op("VSHUFF32X4", "$0xdd", z(24+c), z(16+c), z(8+c))  // 8 + c
		t.op("VSHUFF32X4", "$0xdd", z(28+c), z(20+c), z(12+c)) // 12 + c
	}
}

// pairs writes rows of 16m words, each of two bfloat16 that lie ld elements
// apart: n pairs of rows of 16m elements.
func (t *text) pairs() {
	t.function("pairsBF16AVX512", "func pairsBF16AVX512(to *float32, stride int, from *uint16, ld, n, m int)", 48)
	t.op("MOVQ", "to+0(FP)", "DI")
	t.op("MOVQ", "stride+8(FP)", "SI")
	t.op("MOVQ", "from+16(FP)", "R8")
	t.op("MOVQ", "ld+24(FP)", "R9")
	t.op("MOVQ", "n+32(FP)", "CX")
	t.op("MOVQ", "m+40(FP)", "DX")
	t.op("SHLQ", "$2", "SI")
	t.op("SHLQ", "$1", "R9")
	t.op("LEAQ", "(R9)(R9*1)", "R10")
	t.label("loop")
	t.op("MOVQ", "R8", "R11")
	t.op("MOVQ", "DI", "R12")
	t.op("MOVQ", "DX", "R13")
	t.label("group")
	t.op("VPMOVZXWD", "(R11)", "Z0")
	t.op("VPMOVZXWD", "(R11)(R9*1)", "Z1")
	t.op("VPSLLD", "$16", "Z1", "Z1")
	t.op("VPORD", "Z0", "Z1", "Z0")
	t.op("VMOVDQU32", "Z0", "(R12)")
	t.op("ADDQ", "$32", "R11")
	t.op("ADDQ", "$64", "R12")
	t.op("DECQ", "R13")
	t.op("JNZ", "group")
	t.op("ADDQ", "R10", "R8")
	t.op("ADDQ", "SI", "DI")
	t.op("DECQ", "CX")
	t.op("JNZ", "loop")
	t.finish()
}

func (e elem) goName() string {
	return map[string]string{"F32": "float32", "F64": "float64", "BF16": "float32"}[e.name]
}

// copyRows copies n rows of 16m elements, m being 1 or 2.
func (t *text) copyRows() {
	t.function("copyF32AVX512", "func copyF32AVX512(to *float32, stride int, from *float32, ld, n, m int)", 48)
	t.op("MOVQ", "to+0(FP)", "DI")
	t.op("MOVQ", "stride+8(FP)", "SI")
	t.op("MOVQ", "from+16(FP)", "R8")
	t.op("MOVQ", "ld+24(FP)", "R9")
	t.op("MOVQ", "n+32(FP)", "CX")
	t.op("MOVQ", "m+40(FP)", "DX")
	t.op("SHLQ", "$2", "SI")
	t.op("SHLQ", "$2", "R9")
	t.op("CMPQ", "DX", "$2")
	t.op("JEQ", "two")
	t.label("one")
	t.op("VMOVUPS", "(R8)", "Z0")
	t.op("VMOVUPS", "Z0", "(DI)")
	t.op("ADDQ", "R9", "R8")
	t.op("ADDQ", "SI", "DI")
	t.op("DECQ", "CX")
	t.op("JNZ", "one")
	t.op("JMP", "done")
	t.label("two")
	t.op("VMOVUPS", "(R8)", "Z0")
	t.op("VMOVUPS", "64(R8)", "Z1")
	t.op("VMOVUPS", "Z0", "(DI)")
	t.op("VMOVUPS", "Z1", "64(DI)")
	t.op("ADDQ", "R9", "R8")
	t.op("ADDQ", "SI", "DI")
	t.op("DECQ", "CX")
	t.op("JNZ", "two")
	t.label("done")
	t.finish()
}
