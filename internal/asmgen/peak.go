package main

import "fmt"

// peaks are loops of independent multiply-adds on registers, which bench
// measures the machine's limit with.
func peaks() string {
	t := newText()
	for _, v := range []isa{avx512, avx2} {
		count := v.count * 3 / 4
		t.peak("peakF32"+v.name, count, func(i int) {
			t.op("VFMADD231PS", v.reg+fmt.Sprint(v.count-1), v.reg+fmt.Sprint(v.count-2), v.reg+fmt.Sprint(i))
		}, func(i int) { t.op("VXORPS", "X"+fmt.Sprint(i), "X"+fmt.Sprint(i), "X"+fmt.Sprint(i)) })
	}
	t.peak("peakBF16AVX512", 24, func(i int) { t.dotBF16(31, 30, i) }, func(i int) { t.op("VPXORQ", zmm(i), zmm(i), zmm(i)) })
	return t.String()
}

// peak runs count multiply-adds in each of times turns.
func (t *text) peak(name string, count int, fma, zero func(i int)) {
	t.function(name, "func "+name+"(times int)", 8)
	t.op("MOVQ", "times+0(FP)", "CX")
	for i := range 16 {
		zero(i)
	}
	for i := 16; i < count; i++ {
		t.op("VPXORQ", zmm(i), zmm(i), zmm(i))
	}
	if count > 16 {
		t.op("VPXORQ", "Z30", "Z30", "Z30")
		t.op("VPXORQ", "Z31", "Z31", "Z31")
	}
	t.label("loop")
	for i := range count {
		fma(i)
	}
	t.op("DECQ", "CX")
	t.op("JNZ", "loop")
	t.finish()
}

// dotBF16 is VDPBF16PS of three vector registers: to each float32 of to it adds
// the products of two pairs of bfloat16.
func (t *text) dotBF16(b, a, to int) { t.evex("VDPBF16PS", 2, 0x52, b, a, to) }

// roundBF16 is VCVTNE2PS2BF16: the bfloat16 nearest to the float32 of low and,
// behind them, of high. Subnormal numbers become 0.
func (t *text) roundBF16(low, high, to int) { t.evex("VCVTNE2PS2BF16", 3, 0x72, low, high, to) }

// evex is an instruction on three vector registers that the assembler does not
// know, of the opcodes that begin with 0f 38; prefix is 2 for f3 and 3 for f2.
func (t *text) evex(name string, prefix, opcode, b, a, to int) {
	not := func(x int) int { return ^x & 1 }
	bytes := []int{0x62,
		not(to>>3)<<7 | not(b>>4)<<6 | not(b>>3)<<5 | not(to>>4)<<4 | 2,
		(^a&15)<<3 | 4 | prefix,
		2<<5 | not(a>>4)<<3,
		opcode,
		0xc0 | to&7<<3 | b&7}
	t.WriteString("\t")
	for i, x := range bytes {
		if i > 0 {
			t.WriteString("; ")
		}
		fmt.Fprintf(t, "BYTE $0x%02x", x)
	}
	fmt.Fprintf(t, " // %s Z%d, Z%d, Z%d\n", name, b, a, to)
}
