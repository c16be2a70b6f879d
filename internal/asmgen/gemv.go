package main

import "fmt"

// gemvs are products of a row of numbers with a matrix whose rows or columns
// are read where they lie; sums run along k in order.
func gemvs() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		q := quick{t, v}
		for _, r := range []row{{"BF16", 2}, {"F16", 2}, {"F32", 4}} {
			q.gemvRows(r, 8)
			q.gemvRows(r, 1)
		}
	}
	for _, r := range []row{{"BF16", 2}, {"F16", 2}, {"F32", 4}} {
		quick{t, avx512}.gemvDots(r)
	}
	return t.String()
}

// gemvRows adds some rows of b, which begin stride bytes apart, times as many
// numbers of x, one after another, to n sums, a multiple of 16.
func (q quick) gemvRows(r row, rows int) {
	q.begin(fmt.Sprintf("gemvRows%d%s%s", rows, r.name, q.name), "(sum, x *float32, b unsafe.Pointer, stride, n int)", 40,
		"sum+0(FP)", "DI", "x+8(FP)", "BX", "b+16(FP)", "SI", "stride+24(FP)", "R8", "n+32(FP)", "CX")
	q.op("LEAQ", "(R8)(R8*2)", "R9")
	q.op("LEAQ", "(SI)(R8*4)", "DX")
	for k := range rows {
		q.op("VBROADCASTSS", at("BX", 4*k), q.r(8+k))
	}
	place := []string{"(SI)", "(SI)(R8*1)", "(SI)(R8*2)", "(SI)(R9*1)", "(DX)", "(DX)(R8*1)", "(DX)(R8*2)", "(DX)(R9*1)"}
	q.label("loop")
	q.whole(func(i int) { q.op("VMOVUPS", at("DI", i*q.bytes), q.r(i)) })
	for k := range rows {
		q.whole(func(i int) {
			if r.bytes == 4 {
				q.op("VFMADD231PS", fmt.Sprintf("%d%s", i*q.bytes, place[k]), q.r(8+k), q.r(i))
				return
			}
			q.load(r, place[k], i*q.bytes/2, 2+2*(k%3)+i)
			q.op("VFMADD231PS", q.r(2+2*(k%3)+i), q.r(8+k), q.r(i))
		})
	}
	q.whole(func(i int) { q.op("VMOVUPS", q.r(i), at("DI", i*q.bytes)) })
	for _, reg := range []string{"SI", "DX"} {
		q.op("ADDQ", fmt.Sprintf("$%d", 16*r.bytes), reg)
	}
	q.op("ADDQ", "$64", "DI")
	q.again()
	q.finish()
}

// gemvDots adds the products of x with n rows of b, which begin stride bytes
// apart, to n sums, a multiple of 16: k is a multiple of as many numbers as a
// vector holds of the row's. Squares of 16 rows and columns of words are
// transposed, so that each lane sums one row.
func (q quick) gemvDots(r row) {
	q.begin("gemvDots"+r.name+q.name, "(sum, x *float32, b unsafe.Pointer, stride, k, n int)", 48,
		"sum+0(FP)", "R13", "x+8(FP)", "BX", "b+16(FP)", "R8", "stride+24(FP)", "R9", "k+32(FP)", "CX")
	q.op("LEAQ", "(R9)(R9*2)", "R10")
	q.label("columns")
	q.op("MOVQ", "R13", "DI")
	q.op("MOVQ", "R8", "R12")
	q.op("MOVQ", "n+40(FP)", "DX")
	q.label("rows")
	for i := 0; i < 16; i += 4 {
		for j, at := range []string{"(R12)", "(R12)(R9*1)", "(R12)(R9*2)", "(R12)(R10*1)"} {
			q.op("VMOVUPS", at, q.r(i+j))
			q.op("PREFETCHT1", fmt.Sprintf("%d%s", 64*gemvAhead, at))
		}
		q.op("LEAQ", "(R12)(R9*4)", "R12")
	}
	q.transpose16()
	q.op("VMOVUPS", "(DI)", q.r(16))
	if r.name == "BF16" {
		q.op("VPTERNLOGD", "$0xff", q.r(18), q.r(18), q.r(18))
		q.op("VPSLLD", "$16", q.r(18), q.r(18))
	}
	for k := range 16 {
		word := q.r(k)
		half := func() { // the lower half of each word, as float32
			q.op("VPMOVDW", word, "Y17")
			q.op("VCVTPH2PS", "Y17", q.r(17))
			word = q.r(17)
		}
		switch r.name {
		case "F32":
			q.op("VFMADD231PS.BCST", at("BX", 4*k), word, q.r(16))
		case "BF16":
			q.op("VPSLLD", "$16", word, q.r(17))
			q.op("VFMADD231PS.BCST", at("BX", 8*k), q.r(17), q.r(16))
			q.op("VPANDD", q.r(18), word, word)
			q.op("VFMADD231PS.BCST", at("BX", 8*k+4), word, q.r(16))
		default:
			high := word
			half()
			q.op("VFMADD231PS.BCST", at("BX", 8*k), word, q.r(16))
			q.op("VPSRLD", "$16", high, high)
			word = high
			half()
			q.op("VFMADD231PS.BCST", at("BX", 8*k+4), word, q.r(16))
		}
	}
	q.op("VMOVUPS", q.r(16), "(DI)")
	q.op("ADDQ", "$64", "DI")
	q.op("SUBQ", "$16", "DX")
	q.op("JNZ", "rows")
	q.op("ADDQ", "$64", "R8")
	q.op("ADDQ", fmt.Sprintf("$%d", 4*64/r.bytes), "BX")
	q.op("SUBQ", fmt.Sprintf("$%d", 64/r.bytes), "CX")
	q.op("JNZ", "columns")
	q.finish()
}

// gemvAhead is how many lines of a cache ahead of those that are read others
// are fetched.
const gemvAhead = 4
