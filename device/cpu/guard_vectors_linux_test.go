package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

// bitsOf32 makes all NaN one, so that slices can be compared.
func bitsOf32(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		if b[i] = math.Float32bits(v); v != v {
			b[i] = math.Float32bits(float32(math.NaN()))
		}
	}
	return b
}

func same32(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if !slices.Equal(bitsOf32(got), bitsOf32(want)) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// guardedCopy is a slice with a page that must not be touched on one side.
func guardedCopy[T any](t *testing.T, x []T, behind bool) []T {
	y := guarded[T](t, len(x), behind)
	copy(y, x)
	return y
}

// hard32 are float32 numbers of all sizes, or, where tame, normal ones.
func hard32(r *rand.Rand, n int, tame bool) []float32 {
	x := make([]float64, n)
	if tame {
		fill(r, x)
	} else {
		hardNumbers(r, x)
	}
	y := make([]float32, n)
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// The row operations of BlockAttnRes for 16-bit rows, between pages that must
// not be touched, against those in Go.
func TestQuickKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(81, 1))
	for _, level := range machineTiers() {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
			variants, twin := quickVariants(level, d), quickPortable(d)
			for run := range 40 * len(variants) {
				k, run := variants[run%len(variants)], run/len(variants)
				n, l, behind, tame := 32*(1+r.IntN(5)), 1+r.IntN(5), run%2 == 0, run%4 < 2
				scale := float32(1)
				if run%5 == 4 { // subnormal numbers in all that is added
					scale, tame = 0x1p-126, true
				}
				some := func(n int) []float32 {
					x := hard32(r, n, tame)
					for i := range x {
						x[i] *= scale
					}
					return x
				}
				if run == 7 {
					n = 2*quickSegment + 64
				}
				what := fmt.Sprintf("%s %v, %d rows of %d, run %d", level, d, l, n, run)
				rows, to, ahead := make([]unsafe.Pointer, l), make([]unsafe.Pointer, l), make([]uintptr, l)
				var out [][]byte
				for i := range l {
					row := guarded[byte](t, 2*n, behind)
					store(row, d, 0, 1, some(n))
					rows[i] = unsafe.Pointer(&row[0])
					b := guarded[byte](t, 2*n, behind)
					to[i], out = unsafe.Pointer(&b[0]), append(out, b)
				}
				u, g := guardedCopy(t, some(n), behind), guardedCopy(t, some(n), behind)
				pair := func() ([]float32, []float32) { return guarded[float32](t, l, behind), guarded[float32](t, l, behind) }
				for name, f := range map[string][2]func(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32){
					"squares": {k.squares, twin.squares}, "dots": {k.dots, twin.dots},
				} {
					vx, vu := pair()
					wx, wu := pair()
					f[0](&rows[0], &ahead[0], &g[0], &u[0], l, n, &vx[0], &vu[0])
					f[1](&rows[0], &ahead[0], &g[0], &u[0], l, n, &wx[0], &wu[0])
					same32(t, what+" "+name, append(slices.Clone(vx), vu...), append(slices.Clone(wx), wu...))
				}
				a := guardedCopy(t, hard32(r, l, true), behind)
				at := 32 * r.IntN(n/32)
				for _, first := range []int{0, 1} {
					h := guardedCopy(t, hard32(r, n-at, true), behind)
					want := slices.Clone(h)
					k.mix(&h[0], &rows[0], &ahead[0], &a[0], l, at, n-at, 0.7, first)
					twin.mix(&want[0], &rows[0], &ahead[0], &a[0], l, at, n-at, 0.7, first)
					same32(t, what+" mix", h, want)
				}
				same := make([]byte, 2*n)
				k.narrow(to[0], &g[0], 0.9, n)
				twin.narrow(unsafe.Pointer(&same[0]), &g[0], 0.9, n)
				wide := func(b []byte) []float32 {
					y := make([]float32, len(b)/2)
					for i := range y {
						load(y[i:i+1], b, d, i, 1) // one at a time: in Go
					}
					return y
				}
				same32(t, what+" narrow", wide(out[0]), wide(same))
				left, right := guarded[byte](t, 2*n, behind), guarded[byte](t, 2*n, behind)
				for _, row := range [][]byte{left, right} {
					store(row, d, 0, 1, some(n))
				}
				for _, f := range []device.Binary{device.Add, device.Sub, device.Mul, device.Div} {
					run := k.op(f)
					if run == nil {
						if vectorKernelsOf(level) != nil {
							t.Fatalf("%s: no kernel of operation %d", what, f)
						}
						continue
					}
					want := make([]float32, n)
					binaries32[f](nil, want, &[maxOperands - 1][]float32{wide(left), wide(right)})
					storeOneByOne(same, d, want)
					run(to[0], unsafe.Pointer(&left[0]), unsafe.Pointer(&right[0]), n)
					same32(t, fmt.Sprintf("%s operation %d", what, f), wide(out[0]), wide(same))
				}
				c := guarded[[4]float32](t, l, behind)
				for i := range c {
					copy(c[i][:], hard32(r, 4, true))
				}
				// Past the caches only where lines are whole, which a guard page before them makes them.
				for past := range 2 {
					if past == 1 && (behind || at != 0) {
						continue
					}
					sum := guardedCopy(t, hard32(r, n-at, true), behind)
					want := slices.Clone(sum)
					k.slopes(&to[0], &rows[0], &ahead[0], &g[at], &u[at], &sum[0], &c[0], l, at, n-at, past)
					got := make([][]float32, l)
					for i := range l {
						got[i] = wide(out[i][2*at:])
					}
					twin.slopes(&to[0], &rows[0], &ahead[0], &g[at], &u[at], &want[0], &c[0], l, at, n-at, past)
					for i := range l {
						same32(t, what+" slopes", got[i], wide(out[i][2*at:]))
					}
					same32(t, what+" sums", sum, want)
				}
				short := 16 * (1 + r.IntN(n/16))
				y := guarded[float32](t, short, behind)
				b := guardedCopy(t, unsafe.Slice((*byte)(rows[0]), 2*short), behind)
				k.widen(&y[0], unsafe.Pointer(&b[0]), short)
				same32(t, what+" widen", y, wide(b))

				m := 8 * (1 + r.IntN(4))
				vv, vu := guardedCopy(t, hard32(r, m, true), behind), guardedCopy(t, hard32(r, m, tame), behind)
				rms, key := guarded[float64](t, m, behind), guarded[float64](t, m, behind)
				wr, wk := make([]float64, m), make([]float64, m)
				two := [2]float64{1.0 / 3, 1e-6}
				k.roots(&vv[0], &vu[0], &two, m, &rms[0], &key[0])
				twin.roots(&vv[0], &vu[0], &two, m, &wr[0], &wk[0])
				sameFloats(t, what+" roots", append(slices.Clone(rms), key...), append(wr, wk...))
				numbers := guarded[float64](t, m, behind)
				for i := range numbers {
					numbers[i] = r.NormFloat64() * math.Pow(10, float64(r.IntN(4)))
				}
				e, we := guarded[float64](t, m, behind), make([]float64, m)
				k.exps(&e[0], &numbers[0], &two, m)
				twin.exps(&we[0], &numbers[0], &two, m)
				sameFloats(t, what+" exps", e, we)
				sum := guarded[float64](t, n, behind)
				ws := slices.Clone(sum)
				k.add(&sum[0], &g[0], n)
				twin.add(&ws[0], &g[0], n)
				sameFloats(t, what+" add", sum, ws)
			}
		}
	}
}

// The functions of one number on vectors, in the same way.
func TestMapVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(82, 1))
	before := active
	defer func() { active = before }()
	for _, active = range machineTiers() {
		for _, f := range []device.UnaryFunc{device.Exp, device.Sigmoid, device.SiLU, device.GELUTanh, device.GELU, device.Tanh, device.ReLU} {
			m := nearMaps[f]
			value, values := unary32(device.Unary{Func: f})
			slope, slopes := unaryGrad32(device.Unary{Func: f})
			for run := range 60 {
				n, behind := 1+r.IntN(130), run%2 == 0
				what := fmt.Sprintf("%s, function %d of %d, run %d", active, f, n, run)
				x, g := guardedCopy(t, hard32(r, n, run%4 < 2), behind), guardedCopy(t, hard32(r, n, true), behind)
				y := guarded[float32](t, n, behind)
				want := make([]float32, n)
				value(&values, y, &[maxOperands - 1][]float32{x})
				for i, v := range x {
					want[i] = float32(m.value(float64(v)))
				}
				same32(t, what, y, want)
				slope(&slopes, y, &[maxOperands - 1][]float32{g, x})
				for i, v := range x {
					want[i] = float32(m.slope(float64(v)) * float64(g[i]))
				}
				same32(t, what+", slope", y, want)

				row := &rowScratch{c: [2]float64{r.NormFloat64(), r.NormFloat64()}}
				var wl [16]float64
				expLanes(y, x, row)
				for i, v := range x {
					e := expNear(float64(float64(v)*row.c[0]) - row.c[1])
					want[i] = float32(e)
					wl[i%16] += e
				}
				same32(t, what+", row", y, want)
				sameFloats(t, what+", lanes", row.lanes[:], wl[:])
			}
		}
	}
}

// expNear is as near as it says, over the whole range, and exact at 0.
func TestExpNear(t *testing.T) {
	r := rand.New(rand.NewPCG(83, 1))
	for range 200000 {
		x := (r.Float64()*2 - 1) * 708
		if got, want := expNear(x), math.Exp(x); !(math.Abs(got-want) <= 5e-14*want) {
			t.Fatalf("e^%v is %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, math.Inf(-1): expNear(-708), math.Inf(1): expNear(709)} {
		if got := expNear(x); got != want {
			t.Errorf("e^%v is %v, want %v", x, got, want)
		}
	}
	if x := expNear(math.NaN()); x == x {
		t.Errorf("e^NaN is %v", x)
	}
}

// So are the normal distribution's tail and e^x - 1.
func TestTailNear(t *testing.T) {
	r := rand.New(rand.NewPCG(88, 1))
	for i := range 200000 {
		x := r.NormFloat64() * math.Exp2(float64(i%40)-35)
		tail, bell := tailNear(x)
		if want := elementary.NormalCDF(-math.Abs(x)); math.Abs(x) < 37 && !(math.Abs(tail-want) <= 5e-12*want) {
			t.Fatalf("beyond %v lies %v, want %v", x, tail, want)
		}
		if want := math.Exp(-x * x / 2); math.Abs(x) < 37 && !(math.Abs(bell-want) <= 3e-13*want) {
			t.Fatalf("the bell at %v is %v, want %v", x, bell, want)
		}
		x = min(max(x, -700), 700)
		if got, want := expm1Near(x), math.Expm1(x); !(math.Abs(got-want) <= 5e-13*math.Abs(want)) {
			t.Fatalf("e^%v - 1 is %v, want %v", x, got, want)
		}
	}
}

// The row operations of norms and AdamW, in the same way: with and without a rest.
func TestNormVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(84, 1))
	for _, x := range machineTiers() {
		for run := range 80 {
			n, behind, tame := 1+r.IntN(130), run%2 == 0, run%4 < 2
			what := fmt.Sprintf("%s of %d, run %d", x, n, run)
			row := func(tame bool) []float32 { return guardedCopy(t, hard32(r, n, tame), behind) }
			wide := func() []float64 { return fill(r, guarded[float64](t, n, behind)) }
			c := &normCall{normKernels: normKernelsOf(x), width: n, center: run%3 > 0, w: row(true)}
			twin := &normCall{width: n, center: c.center, w: c.w}
			if run%5 > 1 {
				c.b = row(true)
				twin.b = c.b
			}
			v, g := row(tame), row(tame)
			s, ws := &normRow{c2: [2]float64{0.3, 1.7}, c4: [4]float64{0.2, 1.4}}, &normRow{c2: [2]float64{0.3, 1.7}, c4: [4]float64{0.2, 1.4}}
			a, b := c.sums(s, v)
			wa, wb := twin.sums(ws, v)
			sameFloats(t, what+" sums", []float64{a, b}, []float64{wa, wb})
			y, want := guarded[float32](t, n, behind), make([]float32, n)
			c.scaled(s, y, v)
			twin.scaled(ws, want, v)
			same32(t, what+" scaled", y, want)
			c.means(s, g, v)
			twin.means(ws, g, v)
			sameFloats(t, what+" means", s.c4[:], ws.c4[:])
			s.dw, s.db = wide(), wide()
			ws.dw, ws.db = slices.Clone(s.dw), slices.Clone(s.db)
			c.slope(s, y, g, v)
			twin.slope(ws, want, g, v)
			same32(t, what+" slope", y, want)
			sameFloats(t, what+" sums of slopes", append(slices.Clone(s.dw), s.db...), append(ws.dw, ws.db...))

			if k := normKernelsOf(x); k != nil && n >= 16 {
				n := n &^ 15
				o := &[8]float64{0.9, 0.1, 0.95, 0.05, 0.999, 1e-3, 1.01, 1e-8}
				w, m, q := row(true), row(true), row(true)
				for i := range q {
					q[i] *= q[i]
				}
				ww, wm, wq := slices.Clone(w), slices.Clone(m), slices.Clone(q)
				// The end of each is at the guard where it is behind.
				from := len(w) - n
				k.adamW(&w[from], &m[from], &q[from], &g[from], o, n)
				for i := from; i < from+n; i++ {
					adamW(&ww[i], &wm[i], &wq[i], g[i], o)
				}
				same32(t, what+" adamw", append(append(slices.Clone(w), m...), q...), append(append(ww, wm...), wq...))
			}
		}
	}
}

// The products of a row with a matrix, in the same way.
func TestGemvKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(89, 1))
	for _, x := range machineTiers() {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32} {
			kernels := gemvKernelsOf(x, d)
			if kernels == nil {
				continue // the tier has none: what serves others is tested with those
			}
			for run := range 80 {
				n, behind, tame := 16*(1+r.IntN(5)), run%2 == 0, run%4 < 2
				what := fmt.Sprintf("%s %v, %d sums, run %d", x, d, n, run)
				sums := func() ([]float32, []float32) {
					y := guardedCopy(t, hard32(r, n, tame), behind)
					return y, slices.Clone(y)
				}
				// rows rows of width numbers, stride apart, and the same as float32
				block := func(rows, width int) (unsafe.Pointer, int, func(i, j int) float32) {
					stride := width + r.IntN(20)
					b := guarded[byte](t, ((rows-1)*stride+width)*d.Size(), behind)
					store(b, d, 0, 1, hard32(r, (rows-1)*stride+width, tame))
					return unsafe.Pointer(&b[0]), stride * d.Size(), func(i, j int) float32 {
						var v [1]float32
						load(v[:], b, d, i*stride+j, 1)
						return v[0]
					}
				}
				for rows, run := range map[int]func(sum, x *float32, b unsafe.Pointer, stride, n int){8: kernels.rows8, 1: kernels.row1} {
					v := guardedCopy(t, hard32(r, rows, tame), behind)
					b, stride, at := block(rows, n)
					y, want := sums()
					run(&y[0], &v[0], b, stride, n)
					for j := range want {
						for i := range rows {
							want[j] = fma32(v[i], at(i, j), want[j])
						}
					}
					same32(t, fmt.Sprintf("%s, %d rows", what, rows), y, want)
				}
				if kernels.dots == nil {
					continue // only AVX-512 has it
				}
				k := 64 / d.Size() * (1 + r.IntN(4))
				v := guardedCopy(t, hard32(r, k, tame), behind)
				b, stride, at := block(n, k)
				y, want := sums()
				kernels.dots(&y[0], &v[0], b, stride, k, n)
				for j := range want {
					for i := range k {
						want[j] = fma32(v[i], at(j, i), want[j])
					}
				}
				same32(t, fmt.Sprintf("%s, dots of %d", what, k), y, want)
			}
		}
	}
}

// The words of two bfloat16, and copies of rows.
func TestPackVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(85, 1))
	for _, x := range machineTiers() {
		fast, ok := tileBF16(x)
		if plain := tile32(x); plain.copy != nil {
			for run := range 40 {
				n, m, behind := 1+r.IntN(9), 1+r.IntN(2), run%2 == 0
				ld, stride := 16*m+r.IntN(5), 16*m+r.IntN(5)
				from := guardedCopy(t, hard32(r, (n-1)*ld+16*m, true), behind)
				to := guarded[float32](t, (n-1)*stride+16*m, behind)
				plain.copy(&to[0], stride, &from[0], ld, n, m)
				for i := range to {
					want := float32(0)
					if row, col := i/stride, i%stride; col < 16*m {
						want = from[row*ld+col]
					}
					if to[i] != want {
						t.Fatalf("%s: copy %d of %d rows of %d is %v, want %v", x, i, n, 16*m, to[i], want)
					}
				}
			}
		}
		if !ok {
			continue // the machine, or the tier, has none
		}
		for run := range 40 {
			n, m, behind := 1+r.IntN(9), 1+r.IntN(2), run%2 == 0
			ld, stride := 16*m+r.IntN(5), 16*m+r.IntN(5)
			from := guarded[uint16](t, (2*n-1)*ld+16*m, behind)
			for i := range from {
				from[i] = uint16(r.Uint32())
			}
			to := guarded[uint32](t, (n-1)*stride+16*m, behind)
			fast.pairs((*float32)(unsafe.Pointer(&to[0])), stride, &from[0], ld, n, m)
			for i := range to {
				want := uint32(0)
				if row, col := i/stride, i%stride; col < 16*m {
					want = uint32(from[2*row*ld+col]) | uint32(from[(2*row+1)*ld+col])<<16
				}
				if to[i] != want {
					t.Fatalf("%s: word %d of %d rows of %d is %x, want %x", x, i, n, 16*m, to[i], want)
				}
			}
		}
	}
}
