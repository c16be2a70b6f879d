package cpu

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

func floats64(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	v, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A product with a bias is the product, and then the bias, rounded once: for
// tall results too, and across blocks of columns and of k.
func TestMatMulBias(t *testing.T) {
	r := rand.New(rand.NewPCG(91, 1))
	dev := newDevice(t, 2)
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		for _, s := range [][3]int{{1, 1, 1}, {3, 5, 2}, {70, 3, 9}, {40, 33, 17}, {200, 300, 800}, {193, 257, 400}} {
			m, n, k := s[0], s[1], s[2]
			a := laid(t, dense, d, numbers(r, m*k, -1, 1), m, k)
			b := laid(t, reversed, d, numbers(r, k*n, -1, 1), k, n)
			bias := laid(t, reversed, d, numbers(r, n, -1, 1), n)
			sum, out := laid(t, dense, d.Wide(), nil, m, n), laid(t, dense, d, nil, m, n)
			if err := dev.MatMul(context.Background(), sum, a, b); err != nil {
				t.Fatal(err)
			}
			if err := dev.MatMulBias(context.Background(), out, a, b, bias); err != nil {
				t.Fatal(err)
			}
			got, sums, add := floats64(t, out), floats64(t, sum), floats64(t, bias)
			av, bv := floats64(t, a), floats64(t, b)
			for i := range got {
				want := tensor.Round(d, tensor.Round(d.Wide(), sums[i]+add[i%n]))
				if got[i] != want {
					t.Fatalf("%v %v: element %d is %v, want %v", d, s, i, got[i], want)
				}
				var exact, size float64
				for q := range k {
					exact += av[i/n*k+q] * bv[q*n+i%n]
					size += math.Abs(av[i/n*k+q] * bv[q*n+i%n])
				}
				if !(math.Abs(sums[i]-exact) <= 0x1p-22*size) {
					t.Fatalf("%v %v: sum %d is %v, want %v", d, s, i, sums[i], exact)
				}
			}
		}
	}
	x := laid(t, dense, tensor.Float32, nil, 2, 2)
	for _, bias := range []*tensor.Tensor{nil, x, laid(t, dense, tensor.Int32, nil, 2), laid(t, dense, tensor.Float32, nil, 3)} {
		if err := dev.MatMulBias(context.Background(), laid(t, dense, tensor.Float32, nil, 2, 2), x, x, bias); err == nil {
			t.Errorf("a bias of %v is taken", bias)
		}
	}
}

// Norms of many rows, in an order that no reshape gives, with sums over several chunks.
func TestNormKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(92, 1))
	dev := newDevice(t, 2)
	const a, b, n, eps = 30, 25, 67, 0.01
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, center := range []bool{false, true} {
			values := func(n int) []float64 {
				x := numbers(r, n, -2, 2)
				for i := range x {
					x[i] = tensor.Round(d, x[i])
				}
				return x
			}
			x, g, w, bias := values(a*b*n), values(a*b*n), values(n), values(n)
			tx, tg := laid(t, reversed, d, x, a, b, n), laid(t, dense, d, g, a, b, n)
			args := &device.NormArgs{X: tx, Weight: laid(t, dense, d, w, n), Bias: laid(t, dense, d, bias, n), Eps: eps, Center: center}
			y, dx := laid(t, dense, d, nil, a, b, n), laid(t, reversed, d, nil, a, b, n)
			dw, db := laid(t, dense, d, nil, n), laid(t, dense, d, nil, n)
			rstd := laid(t, dense, tensor.Float64, nil, a, b, 1)
			var mean *tensor.Tensor
			if center {
				mean = laid(t, dense, tensor.Float64, nil, a, b, 1)
			}
			for _, err := range []error{
				dev.NormForward(context.Background(), args, y, mean, rstd),
				dev.NormBackward(context.Background(), args, mean, rstd, tg, dx, dw, db),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			tolerance := map[tensor.DType]float64{tensor.Float32: 1e-6, tensor.BFloat16: 0x1p-8}[d]
			check := func(what string, i int, got, want, size float64) {
				if !(math.Abs(got-want) <= tolerance*(math.Abs(want)+0.01*size)) {
					t.Fatalf("%v, centred %v: %s %d is %v, want %v", d, center, what, i, got, want)
				}
			}
			gy, gdx, gdw, gdb := floats64(t, y), floats64(t, dx), floats64(t, dw), floats64(t, db)
			wantW, wantB := make([]float64, n), make([]float64, n)
			for row := range a * b {
				v, gr := x[row*n:][:n], g[row*n:][:n]
				var m, sq float64
				for _, e := range v {
					m += e / n
				}
				if !center {
					m = 0
				}
				for _, e := range v {
					sq += (e - m) * (e - m) / n
				}
				rs := 1 / math.Sqrt(sq+eps)
				var gw, along float64
				for i, e := range v {
					gw += gr[i] * w[i] / n
					along += gr[i] * w[i] * (e - m) * rs / n
				}
				if !center {
					gw = 0
				}
				for i, e := range v {
					xh := (e - m) * rs
					check("y", row*n+i, gy[row*n+i], xh*w[i]+bias[i], 1)
					check("dx", row*n+i, gdx[row*n+i], rs*(gr[i]*w[i]-gw-xh*along), 1)
					wantW[i] += gr[i] * xh
					wantB[i] += gr[i]
				}
			}
			for i := range n {
				check("dw", i, gdw[i], wantW[i], 30)
				check("db", i, gdb[i], wantB[i], 30)
			}
		}
	}
}

// Tokens whose rows are more than a group of the quick path: the weights and h
// are rescaled from group to group, for rows that lie as the kernels want them
// and for others.
func TestBlockAttnResGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(93, 1))
	dev := newDevice(t, 2)
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for _, width := range []int{8192, 8190} {
			p := newDepth(r, d, 1, 8, 30, width, true, true, 3)
			want := p.reference().of
			x := p.place(t, dense, tensor.Float64)
			x.run(t, dev)
			half := map[tensor.DType]float64{tensor.BFloat16: 0x1p-7, tensor.Float16: 0x1p-10}[d]
			for name, y := range x.results() {
				limit := half
				if name == "alpha_cache" || name == "rms_cache" {
					limit = 4e-6
				}
				var size float64
				for _, w := range want[name] {
					size = max(size, math.Abs(w))
				}
				for i, g := range floats64(t, y) {
					if w := want[name][i]; !(math.Abs(g-w) <= limit*(math.Abs(w)+size/64)+0x1p-24) { // and half a unit of what is subnormal
						t.Fatalf("%v of %d: %s element %d is %v, want %v", d, width, name, i, g, w)
					}
				}
			}
		}
	}
}

// The rotary kernel on tensors that lie otherwise, against the definition, and
// what it refuses.
func TestRotaryKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(93, 1))
	dev := newDevice(t, 2)
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float64} {
		for _, s := range [][3]int{{3, 5, 6}, {2, 70, 34}, {1, 1, 2}, {7, 600, 64}} {
			const leading = 2
			b, steps, width := s[0], s[1], s[2]
			half, n := width/2, leading*s[0]*s[1]*s[2]
			x := numbers(r, n, -2, 2)
			for i := range x {
				x[i] = tensor.Round(d, x[i])
			}
			wide := d.Wide()
			cos, sin := numbers(r, steps*half, -1, 1), numbers(r, steps*half, -1, 1)
			for i := range cos {
				cos[i], sin[i] = tensor.Round(wide, cos[i]), tensor.Round(wide, sin[i])
			}
			for _, back := range []bool{false, true} {
				in, out := laid(t, reversed, d, x, leading, b, steps, width), laid(t, reversed, d, nil, leading, b, steps, width)
				if width == 64 {
					in, out = laid(t, dense, d, x, leading, b, steps, width), laid(t, dense, d, nil, leading, b, steps, width)
				}
				if err := dev.RotateHalves(context.Background(), out, in, laid(t, reversed, wide, cos, steps, half), laid(t, dense, wide, sin, steps, half), back); err != nil {
					t.Fatal(err)
				}
				got := floats64(t, out)
				for i, y := range got {
					row, col := i/width, i%width
					k := row%steps*half + col%half
					a, b, turn := x[row*width+col%half], x[row*width+half+col%half], sin[k]
					if back {
						turn = -turn
					}
					round := func(v float64) float64 { return tensor.Round(wide, v) }
					want := round(round(a*cos[k]) - round(b*turn))
					if col >= half {
						want = round(round(b*cos[k]) + round(a*turn))
					}
					if want = tensor.Round(d, want); y != want {
						t.Fatalf("%v, %v, back %v: element %d is %v, want %v", d, s, back, i, y, want)
					}
				}
			}
		}
	}
	f := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, dims...) }
	x := f(3, 4)
	for _, bad := range [][4]*tensor.Tensor{
		{f(3, 4), x, f(3, 4), f(3, 2)}, {f(3, 4), x, f(3, 2), f(2, 2)}, {f(3, 2), x, f(3, 2), f(3, 2)}, {f(3, 3), f(3, 3), f(3, 1), f(3, 1)},
		{x, x, f(3, 2), f(3, 2)}, {f(4), f(4), f(2), f(2)}, {f(4), f(4), f(0, 2), f(0, 2)}, {nil, x, f(3, 2), f(3, 2)}, {f(3, 4), x, nil, f(3, 2)},
		{f(3, 4), x, laid(t, dense, tensor.Float64, nil, 3, 2), f(3, 2)},
	} {
		if err := dev.RotateHalves(context.Background(), bad[0], bad[1], bad[2], bad[3], false); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

// A product whose chunks hold what is packed of a for many columns and several
// blocks of k has the bits of its rows alone, on any number of threads.
func TestMatMulHoldsRows(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 1))
	const m, k, n = 203, 800, 700
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		a, b := laid(t, dense, d, numbers(r, m*k, -1, 1), m, k), laid(t, dense, d, numbers(r, k*n, -1, 1), k, n)
		want := laid(t, dense, d, nil, m, n)
		one, fast := newDevice(t, 1), New(Threads(1), FastBFloat16())
		defer fast.Close()
		for i := 0; i < m; i += 29 {
			rows := func(x *tensor.Tensor) *tensor.Tensor { return must[*tensor.Tensor](t)(x.Slice(0, i, i+29)) }
			ok(t, one.MatMul(bg, rows(want), rows(a), b))
		}
		for _, threads := range []int{1, 2, 3} {
			got := laid(t, dense, d, nil, m, n)
			ok(t, newDevice(t, threads).MatMul(bg, got, a, b))
			sameBits(t, fmt.Sprintf("%v, %d threads", d, threads), got, want)
		}
		alone, held := laid(t, dense, d, nil, m, n), laid(t, dense, d, nil, m, n)
		for i := 0; i < m; i += 29 {
			ok(t, fast.MatMul(bg, must[*tensor.Tensor](t)(alone.Slice(0, i, i+29)), must[*tensor.Tensor](t)(a.Slice(0, i, i+29)), b))
		}
		ok(t, fast.MatMul(bg, held, a, b))
		sameBits(t, fmt.Sprintf("%v, with FastBFloat16", d), held, alone)
	}
}
