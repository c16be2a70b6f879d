package elementary

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"math"
	"math/big"
	"os"
	"testing"
)

var writeTables = flag.Bool("write-tables", false, "rewrite tables.go")

// TestTables derives every table of tables.go again and compares the text.
func TestTables(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("package elementary\n\n")
	b.WriteString("// The tables below are written and checked by TestTables.\n")
	expTableText(&b)
	logTableText(&b)
	twoOverPiText(&b)
	erfcxTableText(&b)
	want, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if *writeTables {
		if err := os.WriteFile("tables.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("tables.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("tables.go differs from the derived tables; run with -write-tables")
	}
}

func expTableText(b *bytes.Buffer) {
	const p = 320
	fmt.Fprintf(b, "\n// expTable holds 2**(i/128) rounded, as bits, and the relative error of the\n// rounding.\n")
	fmt.Fprintf(b, "var expTable = [128]expEntry{\n")
	for i := range int64(128) {
		x := bigNew(p).Mul(bigLn2(p), bigInt(p, i))
		x.SetMantExp(x, -7)
		v := bigExp(p, x)
		f := q2f(v)
		rest := bigNew(p).Sub(v, bigFloat(p, f))
		rest.Quo(rest, bigFloat(p, f))
		fmt.Fprintf(b, "{%#016x, %s},\n", math.Float64bits(f), hexText(q2f(rest)))
	}
	fmt.Fprintf(b, "}\n")
}

func logTableText(b *bytes.Buffer) {
	const p = 320
	fmt.Fprintf(b, "\n// logTable holds, for each part of [0.6875, 1.375), a short reciprocal of a\n// number c in the part and log(c) for exactly that reciprocal.\n")
	fmt.Fprintf(b, "var logTable = [128]logEntry{\n")
	for i := range uint64(128) {
		lo := math.Float64frombits(logOffset + i<<45)
		hi := math.Float64frombits(logOffset + (i+1)<<45)
		inv := math.Floor(1024*2/(lo+hi)+0.5) / 1024
		if lo == 1 || hi == 1 {
			inv = 1
		}
		c := bigLog(p, bigFloat(p, inv))
		c.Neg(c)
		h := math.Floor(q2f(c)*0x1p42+0.5) * 0x1p-42
		l := bigNew(p).Sub(c, bigFloat(p, h))
		fmt.Fprintf(b, "{%s, %s, %s},\n", hexText(inv), hexText(h), hexText(q2f(l)))
	}
	fmt.Fprintf(b, "}\n")
}

func twoOverPiText(b *bytes.Buffer) {
	const words = 19
	const p = 64*words + 128
	v := bigNew(p).Quo(bigInt(p, 2), bigPi(p))
	v.SetMantExp(v, 64*words)
	n, _ := v.Int(nil)
	fmt.Fprintf(b, "\n// twoOverPi holds the binary digits of 2/pi after the point, following one\n// word of zeros.\n")
	fmt.Fprintf(b, "var twoOverPi = [%d]uint64{\n0,\n", words+1)
	mask := new(big.Int).SetUint64(math.MaxUint64)
	for i := words - 1; i >= 0; i-- {
		w := new(big.Int).Rsh(n, uint(64*i))
		fmt.Fprintf(b, "%#016x,\n", w.And(w, mask).Uint64())
	}
	fmt.Fprintf(b, "}\n")
}

// erfcxTableText writes interpolating polynomials of exp(x*x)*erfc(x).
func erfcxTableText(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n// erfcxTable holds polynomials of exp(x*x)*erfc(x) in the distance of x from\n// the middle of its part: each power of two has 16 parts, the first starts at\n// 1/4.\n")
	fmt.Fprintf(b, "var erfcxTable = [%d][%d]float64{\n", erfcxParts, erfcxTerms)
	for part := range uint64(erfcxParts) {
		lo := math.Float64frombits((erfcxFirst + part) << 48)
		hi := math.Float64frombits((erfcxFirst + part + 1) << 48)
		mid, half := (lo+hi)/2, (hi-lo)/2
		fmt.Fprintf(b, "{ // %v\n", mid)
		for _, c := range erfcxPolynomial(mid, half) {
			fmt.Fprintf(b, "%s,\n", hexText(c))
		}
		fmt.Fprintf(b, "},\n")
	}
	fmt.Fprintf(b, "}\n")
}

func erfcxPolynomial(mid, half float64) []float64 {
	p := uint(900)
	c := bigFloat(p, mid)
	// Taylor coefficients from y' = 2xy - 2/sqrt(pi).
	const order = 40
	taylor := make([]*big.Float, order)
	square := bigNew(p).Mul(c, c)
	taylor[0] = bigNew(p).Mul(bigExp(p, square), bigErfc(p, c))
	for n := range order - 1 {
		v := bigNew(p).Mul(c, taylor[n])
		if n == 0 {
			v.Sub(v, bigNew(p).Quo(bigInt(p, 1), bigNew(p).Sqrt(bigPi(p))))
		} else {
			v.Add(v, taylor[n-1])
		}
		v.SetMantExp(v, 1)
		taylor[n+1] = v.Quo(v, bigInt(p, int64(n+1)))
	}
	// Newton interpolation in the zeros of a Chebyshev polynomial.
	nodes := make([]*big.Float, erfcxTerms)
	diffs := make([]*big.Float, erfcxTerms)
	for i := range nodes {
		_, cos := bigSinCos(bigPrec, bigNew(bigPrec).Quo(
			bigNew(bigPrec).Mul(bigPi(bigPrec), bigInt(bigPrec, int64(2*i+1))),
			bigInt(bigPrec, 2*erfcxTerms)))
		nodes[i] = bigNew(p).Mul(bigFloat(p, q2f(cos)), bigFloat(p, half))
		v := bigNew(p)
		for n := order - 1; n >= 0; n-- {
			v.Mul(v, nodes[i])
			v.Add(v, taylor[n])
		}
		diffs[i] = v
	}
	for level := 1; level < erfcxTerms; level++ {
		for i := erfcxTerms - 1; i >= level; i-- {
			num := bigNew(p).Sub(diffs[i], diffs[i-1])
			diffs[i] = num.Quo(num, bigNew(p).Sub(nodes[i], nodes[i-level]))
		}
	}
	poly := make([]*big.Float, erfcxTerms)
	for i := range poly {
		poly[i] = bigNew(p)
	}
	for i := erfcxTerms - 1; i >= 0; i-- {
		// poly = poly*(x-nodes[i]) + diffs[i]
		for j := erfcxTerms - 1; j > 0; j-- {
			poly[j].Sub(poly[j-1], bigNew(p).Mul(nodes[i], poly[j]))
		}
		poly[0].Sub(diffs[i], bigNew(p).Mul(nodes[i], poly[0]))
	}
	out := make([]float64, erfcxTerms)
	for i := range out {
		out[i] = q2f(poly[i])
	}
	return out
}

func hexText(x float64) string { return fmt.Sprintf("%x", x) }
