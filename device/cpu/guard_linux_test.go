package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// guarded is n numbers with a page behind them, or before them, that must not be
// touched: an access beyond the slice ends the test.
func guarded[T any](t *testing.T, n int, behind bool) []T {
	t.Helper()
	var z T
	bytes, page := n*int(unsafe.Sizeof(z)), syscall.Getpagesize()
	room := (bytes + page - 1) / page * page
	m, err := syscall.Mmap(-1, 0, room+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(m) })
	for _, guard := range [][]byte{m[:page], m[page+room:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	at := page
	if behind {
		at = page + room - bytes
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&m[at])), n)
}

func fill[F real](r *rand.Rand, x []F) []F {
	for i := range x {
		x[i] = F(r.NormFloat64())
	}
	return x
}

// nearTies are numbers whose products and sums lie next to halves of float32's units.
func nearTies[F real](r *rand.Rand, x []F) []F {
	for i := range x {
		v := 1 + math.Ldexp(float64(r.IntN(3)-1), -20)
		if r.IntN(2) == 0 {
			v = math.Ldexp(v, -24)
		}
		x[i] = F(v * float64(1-2*r.IntN(2)))
	}
	return x
}

// Every tile of every tier between pages that must not be touched: it reads and
// writes what it should and gives the bits of the canonical order.
func TestGemmTiles(t *testing.T) {
	for _, x := range machineTiers() {
		gemmTiles(t, x, tile32(x), math.Float32bits)
		gemmTiles(t, x, tile64(x), math.Float64bits)
	}
}

func gemmTiles[F real, B comparable](t *testing.T, name tier, tile tileKernel[F], bits func(F) B) {
	r := rand.New(rand.NewPCG(61, 1))
	var kernels []rowKernel[F] // each with its half
	for _, k := range tile.rows {
		kernels = append(kernels, k)
		if k.half != nil {
			kernels = append(kernels, rowKernel[F]{k.rows, nil, k.half})
		}
	}
	for i, kernel := range kernels {
		t.Run(fmt.Sprintf("%s/%T/%d", name, *new(F), i), func(t *testing.T) { // whose memory is given back at its end
			for _, k := range []int{1, 2, 3, 7, 16, 33} {
				for run := range 40 {
					behind, add := run%2 == 0, run%8 < 4
					numbers := fill[F]
					if run%4 >= 2 {
						numbers = nearTies[F]
					}
					for _, packed := range []bool{true, false} {
						mr, nr := kernel.rows, tile.cols
						f := kernel.run
						if f == nil {
							f, nr = kernel.half, nr/2
						}
						ars, acs, bks, ldc := k+1, 1, nr+3, nr+5
						if packed {
							ars, acs, bks, ldc = 1, mr, nr, nr
						}
						a := numbers(r, guarded[F](t, (mr-1)*ars+(k-1)*acs+1, behind))
						b := numbers(r, guarded[F](t, (k-1)*bks+nr, behind))
						c := numbers(r, guarded[F](t, (mr-1)*ldc+nr, behind))
						want := slices.Clone(c)
						for i := range mr {
							for j := range nr {
								var sum F
								for q := range k {
									if unsafe.Sizeof(sum) == 4 {
										sum = F(fma32(float32(a[i*ars+q*acs]), float32(b[q*bks+j]), float32(sum)))
									} else {
										sum = F(math.FMA(float64(a[i*ars+q*acs]), float64(b[q*bks+j]), float64(sum)))
									}
								}
								if !add {
									want[i*ldc+j] = 0
								}
								want[i*ldc+j] += sum
							}
						}
						f(&c[0], ldc, &a[0], ars, acs, &b[0], bks, k, add)
						for i := range c {
							if bits(c[i]) != bits(want[i]) {
								t.Fatalf("%s %T, %d rows, %d columns, k %d, packed %v: element %d is %v, want %v", name, c[0], mr, nr, k, packed, i, c[i], want[i])
							}
						}
					}
				}
			}
		})
	}
	if tile.transpose == nil {
		return
	}
	for _, n := range []int{1, 2, 5} {
		for _, behind := range []bool{true, false} {
			ld, stride := 16*n+3, 21
			from := fill(r, guarded[F](t, 15*ld+16*n, behind))
			to := guarded[F](t, (16*n-1)*stride+16, behind)
			tile.transpose(&to[0], stride, &from[0], ld, n)
			for i, got := range to {
				row, col := i/stride, i%stride
				want := F(0)
				if col < 16 {
					want = from[col*ld+row]
				}
				if got != want {
					t.Fatalf("%s: transposed %d: element (%d,%d) is %v, want %v", name, n, row, col, got, want)
				}
			}
		}
	}
}

// Which tier is used, and what a wrong name gives.
func TestChooseTier(t *testing.T) {
	have := []tier{portable, avx2}
	for name, want := range map[string]tier{"": avx2, "portable": portable, "avx2": avx2} {
		if got, err := chooseTier(name, have); got != want || err != nil {
			t.Errorf("%q gives %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"avx512", "AVX2", "x"} {
		if _, err := chooseTier(name, have); err == nil || err.Error() != fmt.Sprintf("cpu: LAMINA_TIER is %q, want one that this machine has: portable, avx2", name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if !slices.Contains(machineTiers(), tier(Tier())) {
		t.Errorf("the tier in use is %q", Tier())
	}
}

// odd numbers for rounding: near ties, subnormal, at the end of every format, not finite.
func hardNumbers(r *rand.Rand, x []float64) []float64 {
	for i := range x {
		v := math.Ldexp(1+float64(r.IntN(1<<r.IntN(12)))/(1<<11), r.IntN(300)-160)
		switch r.IntN(8) {
		case 0:
			v = math.Nextafter(v, 0)
		case 1:
			v = math.Nextafter(v, math.Inf(1))
		case 2:
			v = r.NormFloat64()
		case 3:
			v = []float64{0, math.Inf(1), math.Float64frombits(0x7fffffffffffffff), 65504, 65520, 65519.99, math.MaxFloat32, 0x1.ffp127, 0x1.feffffffp127, 0x1p-25, 0x1p-134, math.MaxFloat64, 0x1p-1074}[r.IntN(13)]
		}
		x[i] = v * float64(1-2*r.IntN(2))
	}
	return x
}

func sameFloats(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i, w := range want {
		if math.Float64bits(got[i]) != math.Float64bits(w) && !(got[i] != got[i] && w != w) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], w)
		}
	}
}

// Every row operation in assembly between pages that must not be touched, against Go.
func TestAttnKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(62, 1))
	for _, x := range machineTiers() {
		for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32, tensor.Float64} {
			k := attnKernelsOf(x, d)
			if k == nil {
				continue // this tier has them in Go
			}
			for run := range 60 {
				n, behind := 16*(1+r.IntN(7)), run%2 == 0
				what := fmt.Sprintf("%s %v of %d, run %d", x, d, n, run)
				numbers := fill[float64]
				if run%3 == 0 {
					numbers = hardNumbers
				}
				row := func() (unsafe.Pointer, []float64) {
					b := guarded[byte](t, n*d.Size(), behind)
					store(b, d, 0, 1, numbers(r, make([]float64, n)))
					v := make([]float64, n)
					load(v, b, d, 0, 1)
					return unsafe.Pointer(&b[0]), v
				}
				wide := func() []float64 { return numbers(r, guarded[float64](t, n, behind)) }
				p, v := row()
				g, u, q := wide(), wide(), wide()
				var lanes [32]float64
				var want [2][16]float64
				k.squares(p, &u[0], n, &lanes)
				addLanes(&want[0], v, v)
				addLanes(&want[1], v, u)
				sameFloats(t, what+": squares", lanes[:], append(want[0][:], want[1][:]...))
				k.dots(p, &g[0], &u[0], n, &lanes) // added to what is there
				addLanes(&want[0], v, g)
				addLanes(&want[1], v, u)
				sameFloats(t, what+": dots", lanes[:], append(want[0][:], want[1][:]...))

				l := 1 + r.IntN(5)
				at, rows, alpha := make([]unsafe.Pointer, l), make([][]float64, l), make([]float64, l)
				for i := range l {
					at[i], rows[i] = row()
					alpha[i] = r.NormFloat64()
				}
				first := 16 * r.IntN(n/16)
				h, sum := guarded[float64](t, n-first, behind), make([]float64, n-first)
				k.mix(&h[0], &at[0], &alpha[0], l, first, n-first)
				for i := range rows {
					for j := range sum {
						if i == 0 {
							sum[j] = alpha[0] * rows[0][first+j]
						} else {
							sum[j] = math.FMA(alpha[i], rows[i][first+j], sum[j])
						}
					}
				}
				sameFloats(t, what+": mix", h, sum)

				to, same := guarded[byte](t, n*d.Size(), behind), make([]byte, n*d.Size())
				got, rounded := make([]float64, n), make([]float64, n)
				k.narrow(unsafe.Pointer(&to[0]), &g[0], n)
				storeOneByOne(same, d, g)
				load(got, to, d, 0, 1)
				load(rounded, same, d, 0, 1)
				sameFloats(t, what+": narrow", got, rounded)

				c := [4]float64{r.NormFloat64(), r.NormFloat64(), r.NormFloat64(), r.NormFloat64()}
				dv, added := make([]float64, n), slices.Clone(q)
				for i := range dv {
					dv[i] = math.FMA(-c[2], v[i], math.FMA(c[1], u[i], c[0]*g[i]))
					added[i] = math.FMA(c[3], v[i], q[i])
				}
				k.slopes(unsafe.Pointer(&to[0]), p, &g[0], &u[0], &q[0], &c, n, r.IntN(2))
				storeOneByOne(same, d, dv)
				load(got, to, d, 0, 1)
				load(rounded, same, d, 0, 1)
				sameFloats(t, what+": slopes", got, rounded)
				sameFloats(t, what+": sums", q, added)
			}
		}
	}
}

// What the operator gives is the same in every tier, to the bit, for widths with
// and without a rest.
func TestBlockAttnResTiers(t *testing.T) {
	before := active
	defer func() { active = before }()
	r := rand.New(rand.NewPCG(63, 1))
	dev := newDevice(t, 2)
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32, tensor.Float64} {
		for _, width := range []int{1, 15, 16, 17, 31, 48, 64, 100, 4099, atOnce + 100} {
			b, steps, n := 2, 3, 5
			switch {
			case width == 4099:
				n = 40 // more than one call of mix
			case width > atOnce:
				b, steps, n = 1, 1, 2 // more than one call of everything
			}
			p := newDepth(r, d, b, steps, n, width, width%2 == 0, width%3 != 0, -0.7)
			var want map[string][]uint64
			for _, active = range machineTiers() {
				for run := range 3 {
					x := p.place(t, []layout{dense, reversed, dense}[run], d.Wide())
					if run == 2 { // results alone lie apart
						x.out.H, x.grads.Blocks[0] = laid(t, reversed, d, nil, b, steps, width), laid(t, reversed, d, nil, b, steps, width)
					}
					x.run(t, dev)
					got := map[string][]uint64{}
					for name, y := range x.results() {
						got[name] = bitsOf(t, y)
					}
					if want == nil {
						want = got
					}
					for name := range want {
						if !slices.Equal(got[name], want[name]) {
							t.Errorf("%v of %d: %s is not the same in %s", d, width, name, active)
						}
					}
				}
			}
		}
	}
}

// storeOneByOne is store in Go: a single number is nothing for vectors.
func storeOneByOne[F real](b []byte, d tensor.DType, src []F) {
	for i := range src {
		store(b, d, i, 1, src[i:i+1])
	}
}
