package cpu

import (
	"context"
	"errors"
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

// Softmax, its logarithm and cross-entropy on rows that lie otherwise, among
// them rows with infinite elements, against the definitions in float64; and the
// same bits in every tier.
func TestSoftmaxKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(94, 1))
	before := active
	defer func() { active = before }()
	dev := newDevice(t, 2)
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		for k, s := range [][3]int{{1, 1, 1}, {2, 3, 5}, {3, 5, 16}, {2, 9, 67}, {1, 3, 5000}, {30, 40, 33}} {
			a, b, n := s[0], s[1], s[2]
			values := func() []float64 {
				x := numbers(r, a*b*n, -9, 9)
				for i := range x {
					x[i] = tensor.Round(d, x[i])
				}
				return x
			}
			x, g := values(), values()
			for i := 0; n > 1 && i < a*b; i += 7 { // nothing of a weight
				x[i*n+i%n] = math.Inf(-1)
			}
			for i := range a * b { // and far out
				for j := range n {
					if i%5 == 4 {
						x[i*n+j] = tensor.Round(d, x[i*n+j]*1000)
					}
				}
			}
			order := []layout{dense, reversed, gaps}[k%3]
			for _, log := range []bool{false, true} {
				var first []*tensor.Tensor
				for _, active = range machineTiers() {
					in, grad := laid(t, order, d, x, a, b, n), laid(t, dense, d, g, a, b, n)
					y, dx, stats := laid(t, order, d, nil, a, b, n), laid(t, reversed, d, nil, a, b, n), laid(t, order, tensor.Float64, nil, a, b, 2)
					if k%2 == 1 {
						dx = laid(t, dense, d, nil, a, b, n)
					}
					ok(t, dev.SoftmaxForward(bg, y, stats, in, log))
					ok(t, dev.SoftmaxBackward(bg, dx, grad, in, stats, log))
					if first == nil {
						first = []*tensor.Tensor{y, dx, stats}
						checkSoftmax(t, fmt.Sprintf("%v, %v, log %v", d, s, log), d, n, x, g, floats64(t, y), floats64(t, dx), log)
						same := laid(t, order, d, x, a, b, n)
						ok(t, dev.SoftmaxForward(bg, same, stats, same, log))
						sameBits(t, "in place", same, y)
					}
					for i, z := range []*tensor.Tensor{y, dx, stats} {
						sameBits(t, fmt.Sprintf("%v, %v, log %v, tier %v, result %d", d, s, log, active, i), z, first[i])
					}
				}
			}
		}
	}
}

// checkSoftmax compares rows of n with the definitions, and gradients with theirs.
func checkSoftmax(t *testing.T, what string, d tensor.DType, n int, x, g, y, dx []float64, log bool) {
	t.Helper()
	unit := math.Exp2(-map[tensor.DType]float64{tensor.Float32: 22, tensor.BFloat16: 7, tensor.Float16: 10}[d])
	for from := 0; from < len(x); from += n {
		top, sum, total, along := math.Inf(-1), 0.0, 0.0, 0.0
		for _, v := range x[from:][:n] {
			top = max(top, v)
		}
		p := make([]float64, n)
		for j, v := range x[from:][:n] {
			p[j] = math.Exp(v - top)
			sum += p[j]
		}
		for j := range p {
			p[j] /= sum
			total += g[from+j]
			along += p[j] * g[from+j]
		}
		for j, v := range p {
			wantY, wantX, size := v, v*(g[from+j]-along), 10.0
			if log {
				wantY, wantX, size = x[from+j]-top-math.Log(sum), g[from+j]-v*total, math.Abs(total)+10
			}
			if got := y[from+j]; got != wantY && !(math.Abs(got-wantY) <= unit*math.Abs(wantY)+0x1p-24) {
				t.Fatalf("%s: element %d is %v, want %v", what, from+j, got, wantY)
			}
			if got := dx[from+j]; !(math.Abs(got-wantX) <= unit*math.Abs(wantX)+0x1p-22*size) {
				t.Fatalf("%s: the gradient's element %d is %v, want %v", what, from+j, got, wantX)
			}
		}
	}
}

func TestCrossEntropyKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(95, 1))
	before := active
	defer func() { active = before }()
	dev := newDevice(t, 2)
	const ignore, scale = 2, 0.3
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for k, s := range [][2]int{{1, 1}, {7, 5}, {40, 67}, {600, 48}, {3, 20000}} {
			rows, n := s[0], s[1]
			x := numbers(r, rows*n, -9, 9)
			ids, g := make([]float64, rows), numbers(r, rows, -2, 2)
			for i := range ids {
				ids[i], g[i] = float64(r.IntN(n)), tensor.Round(tensor.Float32, g[i])
			}
			for i := range x {
				if x[i] = tensor.Round(d, x[i]); ids[i/n] == ignore && i%3 == 0 {
					x[i] = math.NaN() // a row that counts for nothing may hold anything
				}
			}
			order := []layout{dense, reversed}[k%2]
			intType := []tensor.DType{tensor.Int32, tensor.Int64}[k%2]
			var first []*tensor.Tensor
			for _, active = range machineTiers() {
				args := &device.CrossEntropyArgs{X: laid(t, order, d, x, rows, n), Targets: laid(t, gaps, intType, ids, rows), Ignore: ignore}
				loss, stats := laid(t, order, tensor.Float32, nil, rows, 1), laid(t, order, tensor.Float64, nil, rows, 2)
				dx := laid(t, order, d, nil, rows, n)
				ok(t, dev.CrossEntropyForward(bg, args, loss, stats))
				ok(t, dev.CrossEntropyBackward(bg, args, stats, laid(t, dense, tensor.Float32, g, rows, 1), scale, dx))
				if first == nil {
					first = []*tensor.Tensor{loss, dx, stats}
				}
				for i, z := range []*tensor.Tensor{loss, dx, stats} {
					sameBits(t, fmt.Sprintf("%v, %v, tier %v, result %d", d, s, active, i), z, first[i])
				}
			}
			loss, dx, stats := floats64(t, first[0]), floats64(t, first[1]), floats64(t, first[2])
			unit := math.Exp2(-map[tensor.DType]float64{tensor.Float32: 22, tensor.BFloat16: 7}[d])
			for i := range rows {
				row, target := x[i*n:][:n], int(ids[i])
				top, sum := math.Inf(-1), 0.0
				for _, v := range row {
					top = max(top, v)
				}
				for _, v := range row {
					sum += math.Exp(v - top)
				}
				want := math.Log(sum) - (row[target] - top)
				if target == ignore {
					want, top, sum = 0, 0, 0
				}
				if stats[2*i] != top || !(math.Abs(stats[2*i+1]-sum) <= 1e-12*sum) {
					t.Fatalf("%v, %v: row %d has %v, want %v and %v", d, s, i, stats[2*i:][:2], top, sum)
				}
				if !(math.Abs(loss[i]-want) <= 0x1p-22*math.Abs(want)) {
					t.Fatalf("%v, %v: loss %d is %v, want %v", d, s, i, loss[i], want)
				}
				for j, v := range row {
					want := math.Exp(v-top) / sum
					if j == target {
						want--
					}
					if want *= g[i] * scale; target == ignore {
						want = 0
					}
					if got := dx[i*n+j]; !(math.Abs(got-want) <= unit*math.Abs(want)+1e-30) {
						t.Fatalf("%v, %v: the gradient's element %d of row %d is %v, want %v", d, s, j, i, got, want)
					}
				}
			}
		}
	}
	f := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, dims...) }
	wide := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Float64, nil, dims...) }
	for _, id := range []float64{-1, 3, 1 << 40} {
		args := &device.CrossEntropyArgs{X: f(2, 3), Targets: laid(t, dense, tensor.Int64, []float64{0, id}, 2), Ignore: -100}
		for name, err := range map[string]error{"forward": dev.CrossEntropyForward(bg, args, f(2, 1), wide(2, 2)),
			"backward": dev.CrossEntropyBackward(bg, args, wide(2, 2), f(2, 1), 1, f(2, 3))} {
			if !errors.Is(err, tensor.ErrIndex) {
				t.Errorf("%s of target %v: %v", name, id, err)
			}
		}
	}
}

// What the kernels of softmax and cross-entropy refuse, and decline.
func TestSoftmaxArguments(t *testing.T) {
	dev := newDevice(t, 1)
	f := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, dims...) }
	wide := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Float64, nil, dims...) }
	whole := func(dims ...int) *tensor.Tensor { return laid(t, dense, tensor.Int32, nil, dims...) }
	x := f(2, 3)
	other := must[*tensor.Tensor](t)(must[*tensor.Tensor](t)(f(6).Reshape(3, 2)).Transpose(0, 1))
	mine := must[*tensor.Tensor](t)(tensor.NewStrided(x.Memory(), tensor.Float32, []int{2, 3}, []int{1, 2}, 0))
	for _, bad := range [][3]*tensor.Tensor{
		{nil, wide(2, 2), x}, {f(2, 3), nil, x}, {f(2, 3), wide(2, 2), nil}, {f(3, 2), wide(2, 2), x}, {wide(2, 3), wide(2, 2), x},
		{f(2, 3), wide(2, 1), x}, {f(2, 3), wide(2), x}, {f(2, 3), f(2, 2), x}, {whole(2, 3), wide(2, 2), whole(2, 3)}, {f(), wide(), f()},
		{f(2, 0), wide(2, 2), f(2, 0)}, {mine, wide(2, 2), x}, {must[*tensor.Tensor](t)(f(1, 3).Expand(2, 3)), wide(2, 2), x},
		{f(2, 3), must[*tensor.Tensor](t)(wide(1, 2).Expand(2, 2)), x},
	} {
		if err := dev.SoftmaxForward(bg, bad[0], bad[1], bad[2], false); err == nil || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("forward takes %v: %v", bad, err)
		}
	}
	ok(t, dev.SoftmaxForward(bg, other, wide(2, 2), x, true))
	for _, bad := range [][4]*tensor.Tensor{
		{nil, x, x, wide(2, 2)}, {f(2, 3), nil, x, wide(2, 2)}, {f(2, 3), x, nil, wide(2, 2)}, {f(2, 3), x, x, nil}, {x, x, x, wide(2, 2)},
		{f(3, 2), x, x, wide(2, 2)}, {f(2, 3), f(2), x, wide(2, 2)}, {f(2, 3), x, x, wide(3, 2)}, {f(2, 3), wide(2, 3), x, wide(2, 2)},
	} {
		if err := dev.SoftmaxBackward(bg, bad[0], bad[1], bad[2], bad[3], false); err == nil || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("backward takes %v: %v", bad, err)
		}
	}
	args := func(x, targets *tensor.Tensor) *device.CrossEntropyArgs {
		return &device.CrossEntropyArgs{X: x, Targets: targets}
	}
	for i, bad := range []struct {
		a           *device.CrossEntropyArgs
		loss, stats *tensor.Tensor
	}{
		{nil, f(2, 1), wide(2, 2)}, {args(nil, whole(2)), f(2, 1), wide(2, 2)}, {args(x, nil), f(2, 1), wide(2, 2)}, {args(f(2, 1, 3), whole(2)), f(2, 1), wide(2, 2)},
		{args(x, f(2)), f(2, 1), wide(2, 2)}, {args(x, whole(3)), f(2, 1), wide(2, 2)}, {args(x, whole(2, 1)), f(2, 1), wide(2, 2)}, {args(whole(2, 3), whole(2)), f(2, 1), wide(2, 2)},
		{args(x, whole(2)), nil, wide(2, 2)}, {args(x, whole(2)), f(2), wide(2, 2)}, {args(x, whole(2)), wide(2, 1), wide(2, 2)}, {args(x, whole(2)), f(2, 1), nil},
		{args(x, whole(2)), f(2, 1), wide(2, 1)}, {args(x, whole(2)), f(2, 1), f(2, 2)}, {args(x, whole(2)), must[*tensor.Tensor](t)(f(1, 1).Expand(2, 1)), wide(2, 2)},
	} {
		if err := dev.CrossEntropyForward(bg, bad.a, bad.loss, bad.stats); err == nil || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("forward %d: %v", i, err)
		}
		if err := dev.CrossEntropyBackward(bg, bad.a, bad.stats, bad.loss, 1, f(2, 3)); i < 14 && err == nil {
			t.Errorf("backward %d is taken", i)
		}
	}
	if err := dev.CrossEntropyBackward(bg, args(x, whole(2)), wide(2, 2), f(2, 1), 1, x); !errors.Is(err, tensor.ErrAlias) {
		t.Errorf("a gradient in the logits' memory: %v", err)
	}
	for name, err := range map[string]error{
		"float64":       dev.SoftmaxForward(bg, wide(2, 3), wide(2, 2), wide(2, 3), false),
		"long rows":     dev.SoftmaxForward(bg, f(1, softmaxWidest+1), wide(1, 2), f(1, softmaxWidest+1), false),
		"cross entropy": dev.CrossEntropyForward(bg, args(wide(2, 3), whole(2)), wide(2, 1), wide(2, 2)),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, dev.SoftmaxForward(bg, f(0, 3), wide(0, 2), f(0, 3), false))
}
