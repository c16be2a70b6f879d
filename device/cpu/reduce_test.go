package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

var reductions = []device.Reduction{device.Sum, device.Mean, device.SumSquares, device.MeanSquare, device.Max, device.Min}

// folded is the sequence of one output folded in the order the kernel promises, written plainly.
func folded(f device.Reduction, x []float64) float64 {
	op := func(a, b float64) float64 { return a + b }
	start := 0.0
	switch f {
	case device.Max:
		op, start = math.Max, math.Inf(-1)
	case device.Min:
		op, start = math.Min, math.Inf(1)
	}
	total := 0.0
	for from := 0; from == 0 || from < len(x); from += 4096 {
		lane := [8]float64{start, start, start, start, start, start, start, start}
		for r := from; r < min(from+4096, len(x)); r++ {
			v := x[r]
			if f == device.SumSquares || f == device.MeanSquare {
				v = float64(v * v)
			}
			lane[r%8] = op(lane[r%8], v)
		}
		part := op(op(op(lane[0], lane[4]), op(lane[2], lane[6])), op(op(lane[1], lane[5]), op(lane[3], lane[7])))
		if from == 0 {
			total = part
		} else {
			total = op(total, part)
		}
	}
	if f == device.Mean || f == device.MeanSquare {
		total /= float64(len(x))
	}
	return total
}

// sequences gives the elements of each output in row-major order.
func sequences(x []float64, shape, out []int) [][]float64 {
	seq := make([][]float64, product(out))
	index := make([]int, len(shape))
	for _, v := range x {
		o := 0
		for a, i := range index {
			if out[a] == 1 {
				i = 0
			}
			o = o*out[a] + i
		}
		seq[o] = append(seq[o], v)
		for a := len(shape) - 1; a >= 0; a-- {
			if index[a]++; index[a] < shape[a] {
				break
			}
			index[a] = 0
		}
	}
	return seq
}

// outShapes are the shapes that fold each subset of the axes.
func outShapes(shape []int) (all [][]int) {
	for set := range 1 << len(shape) {
		out := make([]int, len(shape))
		for i, n := range shape {
			out[i] = n
			if set>>i&1 == 1 {
				out[i] = 1
			}
		}
		all = append(all, out)
	}
	return all
}

// Every reduction of every set of axes in every layout, to the bit.
func TestReduce(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(7, 1))
	for _, shape := range [][]int{{}, {1}, {13}, {5, 9}, {9, 130}, {130, 9}, {3, 4, 5}, {2, 17, 3, 8}, {3, 5, 4, 40}, {3, 2, 4, 48}, {600, 40}, {2, 9000}, {9000, 2}, {33, 13, 20}, {12300}, {4097, 20}, {3, 8192}, {3, 4100, 5}} {
		for _, dt := range floats {
			data := numbers(r, product(shape), -4, 4)
			for i := range data { // of so many sizes that sums in float64 round
				if dt != tensor.Float16 {
					data[i] = math.Ldexp(data[i], r.IntN(81)-40)
				}
			}
			data = rounded(dt, data)
			for _, out := range outShapes(shape) {
				seq := sequences(data, shape, out)
				for _, f := range reductions {
					want := make([]float64, len(seq))
					for i, s := range seq {
						want[i] = folded(f, s)
					}
					for l := range nLayouts {
						if len(data) > 4000 && (dt == tensor.Float16 || (int(f)+int(l))%3 != 0) {
							continue
						}
						for _, od := range floats {
							if od != dt && od != tensor.Float64 {
								continue
							}
							x, y := laid(t, l, dt, data, shape...), laid(t, (l+2)%nLayouts, od, nil, out...)
							ok(t, d.Reduce(bg, f, y, x))
							sameBits(t, label("reduction ", f, " ", shape, " to ", out, " ", dt, " ", l), y, laid(t, dense, od, want, out...))
							outsideIntact(t, "reduce", y)
						}
					}
				}
			}
		}
	}
}

func TestReduceLengths(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(7, 2))
	for n := 1; n <= 130; n++ {
		data := rounded(tensor.Float32, numbers(r, 3*n, -4, 4))
		for _, f := range reductions {
			rows, cols := laid(t, dense, tensor.Float32, nil, 3, 1), laid(t, dense, tensor.Float32, nil, 1, 3)
			ok(t, d.Reduce(bg, f, rows, laid(t, dense, tensor.Float32, data, 3, n)))
			ok(t, d.Reduce(bg, f, cols, must[*tensor.Tensor](t)(laid(t, dense, tensor.Float32, data, 3, n).Transpose(0, 1))))
			for i, v := range values(t, rows) {
				if want := tensor.Round(tensor.Float32, folded(f, data[i*n:(i+1)*n])); v != want {
					t.Fatalf("reduction %d of %d is %v, want %v", f, n, v, want)
				}
			}
			sameBits(t, "by columns", cols, rows)
		}
	}
}

func TestReduceExpanded(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(7, 3))
	shape := []int{30, 40, 50}
	for _, from := range [][]int{{}, {50}, {40, 1}, {30, 1, 1}, {30, 1, 50}} {
		x := must[*tensor.Tensor](t)(laid(t, dense, tensor.Float32, numbers(r, product(from), -1, 1), from...).Expand(shape...))
		full := laid(t, dense, tensor.Float32, values(t, x), shape...)
		for _, out := range outShapes(shape) {
			for _, f := range reductions {
				got, want := laid(t, dense, tensor.Float32, nil, out...), laid(t, dense, tensor.Float32, nil, out...)
				ok(t, d.Reduce(bg, f, got, x))
				ok(t, d.Reduce(bg, f, want, full))
				sameBits(t, label(from, out, f), got, want)
			}
		}
	}
}

func TestReduceExactly(t *testing.T) {
	d := newDevice(t, 2)
	sum := func(f device.Reduction, dt tensor.DType, n int, v float64) float64 {
		x := must[*tensor.Tensor](t)(laid(t, dense, dt, []float64{v}, 1).Expand(n))
		out := laid(t, dense, dt, nil, 1)
		ok(t, d.Reduce(bg, f, out, x))
		return values(t, out)[0]
	}
	for _, dt := range floats {
		if got := sum(device.Sum, dt, 512, 1); got != 512 {
			t.Errorf("%v: 512 ones are %v", dt, got)
		}
		third := tensor.Round(dt, 1.0/3)
		if got := sum(device.Mean, dt, 1000, third); math.Abs(got-third) > 1e-14 {
			t.Errorf("%v: the mean of equal numbers is %v, want %v", dt, got, third)
		}
	}
	if got := sum(device.Sum, tensor.Float32, 1e6, 0.5); got != 5e5 {
		t.Errorf("a million halves are %v", got)
	}
	if got := sum(device.Sum, tensor.BFloat16, 1e6, 0.5); got != tensor.Round(tensor.BFloat16, 5e5) {
		t.Errorf("a million halves are %v", got)
	}
	if got := sum(device.SumSquares, tensor.Float32, 2, 1e30); !math.IsInf(got, 1) {
		t.Errorf("squares beyond the range are %v", got)
	}
	if got := sum(device.MeanSquare, tensor.Float16, 64, 60000); !math.IsInf(got, 1) {
		t.Errorf("squares beyond the range are %v", got)
	}
	// 1, 2^60, -2^60 in one lane each: float32 would lose the 1 if it came between.
	x := laid(t, dense, tensor.Float32, []float64{0x1p40, 1, 0, 0, -0x1p40}, 5)
	out := laid(t, dense, tensor.Float32, nil, 1)
	ok(t, d.Reduce(bg, device.Sum, out, x))
	if v := values(t, out)[0]; v != 1 {
		t.Errorf("got %v", v)
	}
}

// Long sums are accurate: the error against exact integers is none.
func TestReduceLong(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(7, 4))
	const n = 300000
	data := make([]float64, n)
	total := 0
	for i := range data {
		k := r.IntN(1 << 20)
		total += k
		data[i] = float64(k)
	}
	for _, shape := range [][2][]int{{{n}, {1}}, {{n, 1}, {1, 1}}, {{1000, 300}, {1, 1}}, {{300, 1000}, {1, 1}}} {
		out := laid(t, dense, tensor.Float64, nil, shape[1]...)
		ok(t, d.Reduce(bg, device.Sum, out, laid(t, gaps, tensor.Float32, data, shape[0]...)))
		if v := values(t, out)[0]; v != float64(total) {
			t.Errorf("%v: %v, want %d", shape[0], v, total)
		}
	}
}

func TestReduceNaNAndInf(t *testing.T) {
	d := newDevice(t, 2)
	inf, nan := math.Inf(1), math.NaN()
	for _, dt := range floats {
		for _, c := range []struct {
			x    []float64
			want []float64 // in the order of reductions
		}{
			{[]float64{1, nan, 2}, []float64{nan, nan, nan, nan, nan, nan}},
			{[]float64{inf, 1, -inf}, []float64{nan, nan, inf, inf, inf, -inf}},
			{[]float64{-inf, -inf}, []float64{-inf, -inf, inf, inf, -inf, -inf}},
			{[]float64{nan}, []float64{nan, nan, nan, nan, nan, nan}},
		} {
			n := len(c.x)
			for i, f := range reductions {
				// Ten rows, of which only the fifth is the case; the others stay clean.
				data := make([]float64, 10*n)
				copy(data[5*n:], c.x)
				out, across := laid(t, dense, dt, nil, 10, 1), laid(t, dense, dt, nil, 10, 1)
				ok(t, d.Reduce(bg, f, out, laid(t, dense, dt, data, 10, n)))
				ok(t, d.Reduce(bg, f, across, laid(t, reversed, dt, data, 10, n)))
				sameBits(t, "by columns", across, out)
				for j, v := range values(t, out) {
					want := 0.0
					if j == 5 {
						want = c.want[i]
					}
					if v != want && !(v != v && want != want) {
						t.Errorf("%v reduction %d of %v: element %d is %v, want %v", dt, f, c.x, j, v, want)
					}
				}
			}
		}
	}
	// -0 and 0 in any order have one maximum.
	for _, x := range [][]float64{{0, math.Copysign(0, -1)}, {math.Copysign(0, -1), 0}} {
		out := laid(t, dense, tensor.Float32, nil, 1)
		ok(t, d.Reduce(bg, device.Max, out, laid(t, dense, tensor.Float32, x, 2)))
		if bitsOf(t, out)[0] != 0 {
			t.Error("the maximum of 0 and -0 is not 0")
		}
		ok(t, d.Reduce(bg, device.Min, out, laid(t, dense, tensor.Float32, x, 2)))
		if bitsOf(t, out)[0] != 1<<31 {
			t.Error("the minimum of 0 and -0 is not -0")
		}
	}
}

// Axes that share memory are not one axis.
func TestReduceWindows(t *testing.T) {
	d := newDevice(t, 1)
	row := must[*tensor.Tensor](t)(tensor.FromSlice([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9}, 9))
	for _, c := range []struct {
		strides []int
		want    float64
	}{{[]int{1, 1}, 27}, {[]int{2, 1}, 36}, {[]int{1, 2}, 36}, {[]int{3, 1}, 45}, {[]int{0, 1}, 18}} {
		x := must[*tensor.Tensor](t)(tensor.NewStrided(row.Memory(), tensor.Float64, []int{3, 3}, c.strides, 0))
		out := laid(t, dense, tensor.Float64, nil, 1, 1)
		ok(t, d.Reduce(bg, device.Sum, out, x))
		if got := values(t, out)[0]; got != c.want {
			t.Errorf("strides %v: the sum is %v, want %v", c.strides, got, c.want)
		}
	}
}

// Which NaN comes out does not depend on which went in.
func TestReduceGivesOneNaN(t *testing.T) {
	d := newDevice(t, 1)
	x := math.Float64frombits(0x7ff8000000001234)
	y := math.Float64frombits(0xfff8000000004321)
	for _, f := range reductions {
		for _, data := range [][]float64{{1, x, 2}, {y, 1, x}, {x}} {
			out := laid(t, dense, tensor.Float64, nil, 1)
			ok(t, d.Reduce(bg, f, out, laid(t, dense, tensor.Float64, data, len(data))))
			if got := math.Float64bits(values(t, out)[0]); got != math.Float64bits(math.NaN()) {
				t.Errorf("reduction %v of %v gives the NaN %016x", f, data, got)
			}
		}
	}
}

func TestReduceNothing(t *testing.T) {
	d := newDevice(t, 2)
	for _, dt := range floats {
		for _, c := range [][2][]int{{{0}, {1}}, {{3, 0}, {3, 1}}, {{0, 3}, {1, 3}}, {{0, 40}, {1, 40}}, {{0, 3}, {1, 1}}} {
			for _, f := range []device.Reduction{device.Sum, device.SumSquares} {
				out := laid(t, shifted, dt, nil, c[1]...)
				ok(t, d.Reduce(bg, f, out, laid(t, dense, dt, nil, c[0]...)))
				for _, v := range values(t, out) {
					if v != 0 {
						t.Errorf("the sum of %v is %v", c[0], v)
					}
				}
			}
			out := laid(t, dense, dt, nil, c[1]...)
			for _, f := range []device.Reduction{device.Mean, device.MeanSquare, device.Max, device.Min} {
				if err := d.Reduce(bg, f, out, laid(t, dense, dt, nil, c[0]...)); !errors.Is(err, tensor.ErrShape) {
					t.Errorf("reduction %d of nothing: %v", f, err)
				}
			}
		}
		for _, f := range reductions {
			ok(t, d.Reduce(bg, f, laid(t, dense, dt, nil, 0, 1), laid(t, dense, dt, nil, 0, 5)))
		}
	}
}

func TestReduceRefusals(t *testing.T) {
	d := newDevice(t, 1)
	f32 := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, shape...) }
	x := f32(3, 4)
	for i, c := range []struct {
		err  error
		want error
	}{
		{d.Reduce(bg, device.Sum, nil, x), tensor.ErrMissing},
		{d.Reduce(bg, device.Sum, f32(3, 1), nil), tensor.ErrMissing},
		{d.Reduce(bg, device.Sum, f32(3), x), tensor.ErrRank},
		{d.Reduce(bg, device.Sum, f32(3, 2), x), tensor.ErrShape},
		{d.Reduce(bg, device.Sum, laid(t, dense, tensor.Int32, nil, 3, 1), x), tensor.ErrDType},
		{d.Reduce(bg, device.Sum, f32(3, 1), laid(t, dense, tensor.Int64, nil, 3, 4)), tensor.ErrDType},
		{d.Reduce(bg, device.Sum, x, x), tensor.ErrAlias},
		{d.Reduce(bg, device.Sum, must[*tensor.Tensor](t)(f32(1, 1).Expand(3, 1)), x), tensor.ErrAlias},
		{d.Reduce(bg, 77, f32(3, 1), x), tensor.ErrValue},
		{d.Reduce(bg, device.Sum, f32(4, 1), must[*tensor.Tensor](t)(tensor.New(strange{}, tensor.Float32, 4, 4))), tensor.ErrDevice},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("case %d: %v, want a %v error", i, c.err, c.want)
		}
	}
}

func BenchmarkReduce(b *testing.B) {
	d := newDevice(b, 1)
	const n = 1 << 20
	r := rand.New(rand.NewPCG(1, 1))
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		x := laid(b, dense, dt, numbers(r, n, -3, 3), 1024, 1024)
		for _, f := range []device.Reduction{device.Sum, device.SumSquares, device.Max} {
			for _, shape := range [][]int{{1024, 1}, {1, 1024}, {1, 1}} {
				out := laid(b, dense, tensor.Float32, nil, shape...)
				b.Run(label(f, " ", shape, " ", dt), func(b *testing.B) {
					for b.Loop() {
						ok(b, d.Reduce(bg, f, out, x))
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
				})
			}
		}
	}
}
