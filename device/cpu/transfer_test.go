package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// scramble fills a tensor's memory with random bits: NaNs of all kinds,
// subnormals, integers of any size.
func scramble(x *tensor.Tensor, seed uint64) *tensor.Tensor {
	r := rand.New(rand.NewPCG(9, seed))
	b := x.Memory().(*tensor.Host).Bytes()
	for i := range b {
		b[i] = byte(r.Uint32())
		if r.IntN(8) == 0 {
			b[i] = 0xff
		}
	}
	return x
}

var copyShapes = [][]int{{}, {1}, {0}, {130}, {3, 0, 2}, {5, 7}, {33, 65}, {9, 8}, {2, 3, 4, 5}, {3, 40, 50}, {200, 300}, {4, 1, 9, 31}}

// A copy within one dtype, also to and from the device, is exact to the bit.
func TestCopyBits(t *testing.T) {
	d := newDevice(t, 3)
	for _, dt := range dtypes {
		for _, shape := range copyShapes {
			for l := range nLayouts * nLayouts {
				if product(shape) > 3000 && (l+layout(dt))%3 != 0 {
					continue
				}
				x := scramble(laid(t, l%nLayouts, dt, nil, shape...), uint64(l))
				for i, do := range []func(out *tensor.Tensor) error{
					func(out *tensor.Tensor) error { return d.Copy(bg, out, x) },
					func(out *tensor.Tensor) error { return d.Upload(bg, out, x) },
					func(out *tensor.Tensor) error { return d.Download(bg, out, x) },
				} {
					out := laid(t, l/nLayouts, dt, nil, shape...)
					ok(t, do(out))
					sameBits(t, label(dt, shape, l, i), out, x)
					outsideIntact(t, label(dt, shape, l, i), out)
				}
			}
		}
	}
}

// Between dtypes a copy rounds once.
func TestCopyConverts(t *testing.T) {
	d := newDevice(t, 2)
	r := rand.New(rand.NewPCG(9, 1))
	for _, od := range dtypes {
		for _, xd := range dtypes {
			if od.IsInt() && !xd.IsInt() {
				if err := d.Copy(bg, laid(t, dense, od, nil, 1), laid(t, dense, xd, nil, 1)); !errors.Is(err, tensor.ErrDType) {
					t.Errorf("%v from %v: %v", od, xd, err)
				}
				continue
			}
			for _, shape := range copyShapes {
				data := numbers(r, product(shape), -100, 100)
				for i := range data {
					if xd.IsInt() {
						data[i] = math.Trunc(data[i] * 300)
					} else if r.IntN(5) == 0 {
						data[i] = math.Ldexp(data[i], r.IntN(60)-40)
					}
				}
				for l := range nLayouts * nLayouts {
					if len(data) > 3000 && (l+layout(xd))%5 != 0 {
						continue
					}
					x, out := laid(t, l%nLayouts, xd, data, shape...), laid(t, l/nLayouts, od, nil, shape...)
					ok(t, d.Copy(bg, out, x))
					xs := values(t, x)
					for i, v := range values(t, out) {
						if want := tensor.Round(od, xs[i]); v != want {
							t.Fatalf("%v from %v: %v became %v, want %v", od, xd, xs[i], v, want)
						}
					}
					outsideIntact(t, "copy", out)
				}
			}
		}
	}
}

func TestCopyExtremes(t *testing.T) {
	d := newDevice(t, 1)
	// Halfway between two bfloat16 but for the last bit of a float64: rounding by way of float32 would see a tie.
	for _, c := range []struct {
		dt   tensor.DType
		x    float64
		want float64
	}{
		{tensor.BFloat16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7}, {tensor.BFloat16, 1 + 0x1p-8, 1}, {tensor.BFloat16, 1 + 3*0x1p-8 - 0x1p-40, 1 + 0x1p-7},
		{tensor.Float16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10}, {tensor.Float16, 65519.99, 65504}, {tensor.Float16, 65520, math.Inf(1)}, {tensor.Float16, 0x1p-25, 0},
		{tensor.Float32, math.MaxFloat64, math.Inf(1)}, {tensor.Float32, 0x1p-149, 0x1p-149},
	} {
		out := laid(t, dense, c.dt, nil, 1)
		ok(t, d.Copy(bg, out, laid(t, dense, tensor.Float64, []float64{c.x}, 1)))
		if v := values(t, out)[0]; v != c.want {
			t.Errorf("%v in %v is %v, want %v", c.x, c.dt, v, c.want)
		}
		ok(t, d.Fill(bg, out, c.x))
		if v := values(t, out)[0]; v != c.want {
			t.Errorf("filled with %v, %v holds %v, want %v", c.x, c.dt, v, c.want)
		}
	}
	x := must[*tensor.Tensor](t)(tensor.FromSlice([]int64{math.MaxInt32, math.MinInt32, -1, 1<<32 + 5, 1<<24 + 1}, 5))
	narrow := laid(t, dense, tensor.Int32, nil, 5)
	ok(t, d.Copy(bg, narrow, x))
	if v := must[[]int64](t)(narrow.Int64s()); !slices.Equal(v, []int64{math.MaxInt32, math.MinInt32, -1, 5, 1<<24 + 1}) {
		t.Errorf("int64 to int32: %v", v)
	}
	wide := laid(t, dense, tensor.Float64, nil, 5)
	ok(t, d.Copy(bg, wide, x))
	if v := values(t, wide); v[4] != 1<<24+1 || v[3] != 1<<32+5 {
		t.Errorf("int64 to float64: %v", v)
	}
	half := laid(t, dense, tensor.BFloat16, nil, 1)
	ok(t, d.Copy(bg, half, must[*tensor.Tensor](t)(tensor.FromSlice([]int64{1<<32 + 1<<24 + 1}, 1))))
	if v := values(t, half)[0]; v != 1<<32+1<<25 {
		t.Errorf("int64 to bfloat16 is rounded twice: %v", v)
	}
}

func TestFill(t *testing.T) {
	d := newDevice(t, 3)
	for _, dt := range dtypes {
		for _, value := range []float64{0, 1, -2.7, 0.1, 1000.5} {
			for _, shape := range append([][]int{{40000}}, copyShapes...) {
				for l := range nLayouts {
					out := laid(t, l, dt, nil, shape...)
					ok(t, d.Fill(bg, out, value))
					for _, v := range values(t, out) {
						if v != tensor.Round(dt, value) {
							t.Fatalf("%v filled with %v holds %v", dt, value, v)
						}
					}
					outsideIntact(t, "fill", out)
				}
			}
		}
		out := laid(t, dense, dt, nil, 2)
		for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e30} {
			err := d.Fill(bg, out, value)
			if dt.IsInt() && !errors.Is(err, tensor.ErrValue) || dt.IsFloat() && err != nil {
				t.Errorf("%v filled with %v: %v", dt, value, err)
			}
		}
	}
	out := laid(t, dense, tensor.Int32, nil, 1)
	ok(t, d.Fill(bg, out, math.MinInt32))
	ok(t, d.Fill(bg, out, math.MaxInt32))
	if err := d.Fill(bg, out, math.MaxInt32+1); !errors.Is(err, tensor.ErrValue) {
		t.Error(err)
	}
}

func TestTransferRefusals(t *testing.T) {
	d := newDevice(t, 1)
	f32 := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, shape...) }
	x := f32(4)
	part, next := must[*tensor.Tensor](t)(x.Slice(0, 0, 3)), must[*tensor.Tensor](t)(x.Slice(0, 1, 4))
	wide := must[*tensor.Tensor](t)(f32(1).Expand(4))
	far := must[*tensor.Tensor](t)(tensor.New(elsewhere{}, tensor.Float32, 4))
	odd := must[*tensor.Tensor](t)(tensor.New(strange{}, tensor.Float32, 4))
	half := laid(t, dense, tensor.BFloat16, nil, 4)
	for i, c := range []struct {
		err  error
		want error
	}{
		{d.Copy(bg, nil, x), tensor.ErrMissing},
		{d.Copy(bg, x, nil), tensor.ErrMissing},
		{d.Copy(bg, f32(3), x), tensor.ErrShape},
		{d.Copy(bg, part, next), tensor.ErrAlias},
		{d.Copy(bg, wide, x), tensor.ErrAlias},
		{d.Copy(bg, x, far), tensor.ErrDevice},
		{d.Copy(bg, x, odd), tensor.ErrDevice},
		{d.Copy(bg, x, new(tensor.Tensor)), tensor.ErrDevice},
		{d.Upload(bg, x, nil), tensor.ErrMissing},
		{d.Upload(bg, nil, x), tensor.ErrMissing},
		{d.Upload(bg, x, half), tensor.ErrDType},
		{d.Upload(bg, x, f32(3)), tensor.ErrShape},
		{d.Upload(bg, x, far), tensor.ErrDevice},
		{d.Download(bg, nil, x), tensor.ErrMissing},
		{d.Download(bg, x, nil), tensor.ErrMissing},
		{d.Download(bg, x, half), tensor.ErrDType},
		{d.Download(bg, x, far), tensor.ErrDevice},
		{d.Download(bg, wide, x), tensor.ErrAlias},
		{d.Fill(bg, nil, 0), tensor.ErrMissing},
		{d.Fill(bg, wide, 0), tensor.ErrAlias},
		{d.Fill(bg, far, 0), tensor.ErrDevice},
		{d.Fill(bg, odd, 0), tensor.ErrDevice},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("case %d: %v, want a %v error", i, c.err, c.want)
		}
	}
	var _ device.Device = d
	ok(t, d.Copy(bg, x, x)) // onto itself
}

func BenchmarkCopy(b *testing.B) {
	d := newDevice(b, 1)
	const n = 1 << 20
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		out := laid(b, dense, dt, make([]float64, n), 1024, 1024)
		for name, x := range map[string]*tensor.Tensor{
			"same":          laid(b, dense, dt, make([]float64, n), 1024, 1024),
			"transposed":    laid(b, reversed, dt, make([]float64, n), 1024, 1024),
			"strided":       laid(b, gaps, dt, make([]float64, n), 1024, 1024),
			"from float32t": laid(b, reversed, tensor.Float32, make([]float64, n), 1024, 1024),
			"from float64":  laid(b, dense, tensor.Float64, make([]float64, n), 1024, 1024),
		} {
			b.Run(label(name, " ", dt), func(b *testing.B) {
				for b.Loop() {
					ok(b, d.Copy(bg, out, x))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
