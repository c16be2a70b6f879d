package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Rows of float32 between pages that must not be touched, of every tier against
// loops written out here.
func TestRowVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(86, 1))
	before := active
	defer func() { active = before }()
	for _, active = range machineTiers() {
		for run := range 200 {
			n, behind := 1+r.IntN(130), run%2 == 0
			what := fmt.Sprintf("%s of %d, run %d", active, n, run)
			row := func() []float32 { return guardedCopy(t, hard32(r, n, run%4 < 2), behind) }
			a, b := row(), row()
			y, want := guarded[float32](t, n, behind), make([]float32, n)
			for f, op := range map[device.Binary]func(a, b float32) float32{
				device.Add:     func(a, b float32) float32 { return a + b },
				device.Sub:     func(a, b float32) float32 { return a - b },
				device.Mul:     func(a, b float32) float32 { return a * b },
				device.Div:     func(a, b float32) float32 { return a / b },
				device.Maximum: func(a, b float32) float32 { return max(a, b) },
			} {
				k, c := binary32(f)
				k(&c, y, &[maxOperands - 1][]float32{a, b})
				for i := range want {
					want[i] = op(a[i], b[i])
				}
				same32(t, fmt.Sprintf("%s, operation %d", what, f), y, want)
			}

			y = guardedCopy(t, a, behind)
			addTo(y, b)
			sum, ws := guarded[float64](t, n, behind), make([]float64, n)
			for i := range sum {
				sum[i] = r.NormFloat64()
				ws[i] = sum[i] + float64(b[i])
				want[i] = a[i] + b[i]
			}
			addWide(sum, b)
			same32(t, what+", addTo", y, want)
			sameFloats(t, what+", addWide", sum, ws)

			most, number := math.Inf(-1), slices.Clone(a)
			if run%5 == 0 {
				number[r.IntN(n)] = float32(math.NaN())
			}
			if run%7 == 0 {
				for i, v := range number {
					number[i] = -float32(math.Abs(float64(v)))
				}
			}
			number = guardedCopy(t, number, behind)
			for _, v := range number {
				if float64(v) > most {
					most = float64(v)
				}
			}
			s := &rowScratch{}
			if got := topOf(s, number); got != most {
				t.Fatalf("%s: the largest is %v, want %v", what, got, most)
			}

			var lanes [16]float64
			c, d := r.NormFloat64(), r.NormFloat64()
			y = guardedCopy(t, a, behind)
			for i := range a {
				lanes[i%16] += float64(a[i]) * float64(b[i])
				want[i] = float32(float64(float64(b[i])*(float64(a[i])-c)) * d)
			}
			dotWide(s, b, a) // leaves nothing behind
			sameFloats(t, what+", dot", []float64{dotWide(s, a, b)}, []float64{joinLanes(lanes[:])})
			softmaxSlope(s, y, b, c, d)
			same32(t, what+", slope", y, want)
			for i := range want {
				want[i] = float32(float64(y[i]) * d)
			}
			scaleBy(s, y, d)
			same32(t, what+", scale", y, want)
			far := float64(a[r.IntN(n)]) // whose sum with d may round all of d away
			for i := range want {
				want[i] = float32(float64(a[i]) - far - d)
			}
			shiftBy(s, y, a, far, d)
			same32(t, what+", shift", y, want)
			for i := range want {
				want[i] = float32(math.FMA(-c, float64(b[i]), float64(y[i])))
			}
			subtractTimes(s, y, b, c)
			same32(t, what+", subtract", y, want)

			for f, of := range map[device.Reduction]func(x float64) float64{device.Sum: func(x float64) float64 { return x },
				device.SumSquares: func(x float64) float64 { return x * x }, device.Max: func(x float64) float64 { return x }} {
				acc, sums := &folding{}, [8]float64{}
				for i, v := range a {
					if f == device.Max {
						sums[i%8] = max(sums[i%8], float64(v))
					} else {
						sums[i%8] += of(float64(v))
					}
				}
				foldTile(f, &acc.along, a)
				sameFloats(t, fmt.Sprintf("%s, fold %d", what, f), acc.along[:], sums[:])
			}

			rows, half := 1+r.IntN(4), n
			if run == 50 { // more than one call takes
				rows, half = 700, 48
			}
			long := func(n int) []float32 { return guardedCopy(t, hard32(r, n, run%4 < 2), behind) }
			x, cos, sin := long(2*rows*half), long(rows*half), long(rows*half)
			out, turned := guarded[float32](t, 2*rows*half, behind), make([]float32, 2*rows*half)
			sign := float32(1 - run%2*2)
			rotateRows(out, x, cos, sin, &sign, rows, half)
			for i := range rows {
				for j := range half {
					a, b, c, s := x[2*i*half+j], x[(2*i+1)*half+j], cos[i*half+j], sign*sin[i*half+j]
					turned[2*i*half+j] = float32(a*c) - float32(b*s)
					turned[(2*i+1)*half+j] = float32(b*c) + float32(a*s)
				}
			}
			same32(t, what+", turned", out, turned)
		}
	}
}

// Blocks of rows of each format, widened and rounded, in the same way.
func TestRowBlocks(t *testing.T) { eachRounding(func() { rowBlocks(t) }) }

func rowBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(87, 1))
	before := active
	defer func() { active = before }()
	for _, active = range machineTiers() {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32} {
			for run := range 120 {
				rows, width, behind := 1+r.IntN(20), 1+r.IntN(100), run%2 == 0
				if run%3 > 0 {
					width = (width + 15) &^ 15
				}
				if run == 10 { // more than one call takes
					rows, width = 500, 64
				}
				inner := 1 + run%5/4
				stride := width*inner + r.IntN(20)
				what := fmt.Sprintf("%s, %v, %d rows of %d, %d and %d apart", active, d, rows, width, stride, inner)
				size := (rows-1)*stride + (width-1)*inner + 1
				from := guarded[byte](t, size*d.Size(), behind)
				store(from, d, 0, 1, hard32(r, size, run%4 < 2))
				to := guarded[float32](t, rows*width, behind)
				loadRows(to, from, d, 0, stride, inner, rows, width)
				want := make([]float32, rows*width)
				for i := range rows {
					for j := range width {
						load(want[i*width+j:][:1], from, d, i*stride+j*inner, 1)
					}
				}
				same32(t, what+", widened", to, want)

				ld := width + r.IntN(9)
				x := guardedCopy(t, hard32(r, (rows-1)*ld+width, run%4 < 2), behind)
				if run%5 == 4 { // among subnormal numbers
					for i := range x {
						x[i] *= 0x1p-126
					}
				}
				back := slices.Clone(from)
				storeRows(from, d, 0, stride, inner, rows, width, x, ld)
				for i := range rows {
					for j := range width {
						store(back, d, i*stride+j*inner, 1, x[i*ld+j:][:1])
					}
				}
				got, must := make([]float32, size), make([]float32, size)
				load(got, from, d, 0, 1)
				load(must, back, d, 0, 1)
				same32(t, what+", rounded", got, must)
			}
		}
	}
}

// Rows of each format added to lanes in turn, in the same way.
func TestSumRows(t *testing.T) {
	r := rand.New(rand.NewPCG(90, 1))
	before := active
	defer func() { active = before }()
	for _, active = range machineTiers() {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32, tensor.Float64} {
			for run := range 120 {
				rows, width, behind := 1+r.IntN(20), 1+r.IntN(columns), run%2 == 0
				if run == 10 { // more than one call takes
					rows, width = 500, columns
				}
				stride := width + r.IntN(20)
				what := fmt.Sprintf("%s, %v, %d rows of %d, %d apart", active, d, rows, width, stride)
				b := guarded[byte](t, ((rows-1)*stride+width)*d.Size(), behind)
				store(b, d, 0, 1, hard32(r, (rows-1)*stride+width, run%4 < 2))
				acc := &guarded[[lanes][columns]float64](t, 1, behind)[0]
				var want [lanes][columns]float64
				for i := range want {
					for j := range want[i] {
						want[i][j] = r.NormFloat64()
					}
				}
				*acc = want
				n := sumRows(acc, b, d, 0, stride, rows, width)
				if most := width &^ 15; n != most && (n != 0 || active != portable && d != tensor.Float64) {
					t.Fatalf("%s: %d columns", what, n)
				}
				for i := range rows {
					for j := range n {
						var v [1]float32
						load(v[:], b, d, i*stride+j, 1)
						want[i%lanes][j] += float64(v[0])
					}
				}
				for i := range want {
					sameFloats(t, what, acc[i][:], want[i][:])
				}
			}
		}
	}
}
