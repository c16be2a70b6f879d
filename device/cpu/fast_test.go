package cpu

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/tensor"
)

// The fast products of bfloat16 are those in float64 but for float32 roundings of
// their sums, for all forms and odd sizes; and do not depend on the threads.
// A row or a column is exact; and so is all where there are no instructions for it.
func TestFastBFloat16(t *testing.T) {
	_, there := tileBF16(active)
	r := rand.New(rand.NewPCG(71, 1))
	exact := newDevice(t, 2)
	one, three := New(Threads(1), FastBFloat16()), New(Threads(3), FastBFloat16())
	defer one.Close()
	defer three.Close()
	for _, s := range [][3]int{{1, 1, 1}, {2, 3, 5}, {16, 32, 64}, {17, 33, 65}, {70, 31, 1601}, {200, 300, 129}, {260, 40, 34}, {3, 500, 97}, {500, 3, 98}, {1, 80, 416}, {90, 1, 416}, {1, 50, 97}} {
		m, n, k := s[0], s[1], s[2]
		for _, form := range []string{"nn", "nt", "tn", "tt"} {
			operand := func(rows, cols int, form byte) (*tensor.Tensor, []float64) {
				l := dense
				if form == 't' {
					l = reversed
				}
				x := numbers(r, rows*cols, -1, 1)
				y := laid(t, l, tensor.BFloat16, x, 1, rows, cols)
				v, err := y.Float64s()
				if err != nil {
					t.Fatal(err)
				}
				return y, v
			}
			a, av := operand(m, k, form[0])
			b, bv := operand(k, n, form[1])
			var last []float64
			for _, d := range []*Device{one, three} {
				for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
					c := laid(t, dense, dtype, nil, 1, m, n)
					if err := d.MatMul(context.Background(), c, a, b); err != nil {
						t.Fatal(err)
					}
					same := laid(t, dense, dtype, nil, 1, m, n)
					ok(t, exact.MatMul(bg, same, a, b))
					if !there || m == 1 || n == 1 {
						sameBits(t, fmt.Sprintf("%v %s, beside the exact product", s, form), c, same)
					}
					got, err := c.Float64s()
					if err != nil {
						t.Fatal(err)
					}
					for i := range m {
						for j := range n {
							var want, size float64
							for q := range k {
								want += av[i*k+q] * bv[q*n+j]
								size += math.Abs(av[i*k+q] * bv[q*n+j])
							}
							slack := 0x1p-24 * size * math.Sqrt(float64(k)+4)
							if dtype == tensor.BFloat16 {
								slack += 0x1p-8 * math.Abs(want)
							}
							if !(math.Abs(got[i*n+j]-want) <= slack) {
								t.Fatalf("%v %s %v: (%d,%d) is %v, want %v", s, form, dtype, i, j, got[i*n+j], want)
							}
						}
					}
					if dtype == tensor.Float32 {
						for i := range last {
							if got[i] != last[i] {
								t.Fatalf("%v %s: element %d depends on the threads", s, form, i)
							}
						}
						last = got
					}
				}
			}
		}
	}
}
