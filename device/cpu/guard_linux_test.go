package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"unsafe"
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
	for _, kernel := range tile.rows {
		for _, k := range []int{1, 2, 3, 7, 16, 33} {
			for run := range 40 {
				behind := run%2 == 0
				numbers := fill[F]
				if run%4 >= 2 {
					numbers = nearTies[F]
				}
				for _, packed := range []bool{true, false} {
					mr, nr := kernel.rows, tile.cols
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
							want[i*ldc+j] += sum
						}
					}
					kernel.run(&c[0], ldc, &a[0], ars, acs, &b[0], bks, k)
					for i := range c {
						if bits(c[i]) != bits(want[i]) {
							t.Fatalf("%s %T, %d rows, k %d, packed %v: element %d is %v, want %v", name, c[0], mr, k, packed, i, c[i], want[i])
						}
					}
				}
			}
		}
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
