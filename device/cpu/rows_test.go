package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/tensor"
)

func someIDs(r *rand.Rand, n, rows int) []float64 {
	ids := make([]float64, n)
	for i := range ids {
		ids[i] = float64(r.IntN(rows))
	}
	return ids
}

func TestGather(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(8, 1))
	for _, c := range [][3]int{{1, 1, 1}, {5, 9, 3}, {7, 130, 129}, {50, 700, 40}, {3, 0, 5}, {3, 4, 0}, {9, 2, 20000}, {0, 0, 3}} {
		rows, n, width := c[0], c[1], c[2]
		data := numbers(r, rows*width, -4, 4)
		idv := someIDs(r, n, max(rows, 1))
		for _, dt := range floats {
			for _, od := range floats {
				for l := range nLayouts {
					table, ids := laid(t, l, dt, data, rows, width), laid(t, (l+1)%nLayouts, integers[int(l)%2], idv, n)
					out := laid(t, (l+2)%nLayouts, od, nil, n, width)
					ok(t, d.Gather(bg, out, table, ids))
					tv := values(t, table)
					for i, v := range values(t, out) {
						if want := tensor.Round(od, tv[int(idv[i/width])*width+i%width]); v != want {
							t.Fatalf("%v: element %d is %v, want %v", c, i, v, want)
						}
					}
					outsideIntact(t, "gather", out)
				}
			}
		}
	}
}

// Within one dtype rows are copied to the bit, NaN payloads and all.
func TestGatherBits(t *testing.T) {
	d := newDevice(t, 1)
	for _, dt := range floats {
		table := must[*tensor.Tensor](t)(tensor.Zeros(dt, 2, 100))
		b := table.Memory().(*tensor.Host).Bytes()
		r := rand.New(rand.NewPCG(8, 2))
		for i := range b {
			b[i] = byte(r.Uint32()) | 0x7f*byte(i%2)
		}
		out := laid(t, gaps, dt, nil, 2, 100)
		ok(t, d.Gather(bg, out, table, laid(t, dense, tensor.Int32, []float64{0, 1}, 2)))
		sameBits(t, dt.String(), out, table)
	}
}

func TestScatterAdd(t *testing.T) {
	d := newDevice(t, 3)
	r := rand.New(rand.NewPCG(8, 3))
	for _, c := range [][3]int{{1, 1, 1}, {5, 9, 3}, {7, 130, 129}, {50, 700, 40}, {3, 0, 5}, {3, 4, 0}, {9, 20, 2000}, {1, 3000, 7}, {4000, 10, 5}} {
		rows, n, width := c[0], c[1], c[2]
		before, add := numbers(r, rows*width, -4, 4), numbers(r, n*width, -4, 4)
		idv := someIDs(r, n, rows)
		for _, dt := range floats {
			for _, xd := range floats {
				l := layout(r.IntN(int(nLayouts)))
				out, ids := laid(t, l, dt, before, rows, width), laid(t, (l+1)%nLayouts, integers[r.IntN(2)], idv, n)
				x := laid(t, (l+2)%nLayouts, xd, add, n, width)
				want, xs := values(t, out), values(t, x)
				for i := range xs {
					want[int(idv[i/width])*width+i%width] += xs[i] // in order of i, in float64
				}
				ok(t, d.ScatterAdd(bg, out, ids, x))
				for i, v := range values(t, out) {
					if v != tensor.Round(dt, want[i]) {
						t.Fatalf("%v %v from %v: element %d is %v, want %v", c, dt, xd, i, v, want[i])
					}
				}
				outsideIntact(t, "scatter-add", out)
			}
		}
	}
}

// A row that no id names keeps its bits; one that is named by all is exact.
func TestScatterAddTouchesOnlyNamedRows(t *testing.T) {
	d := newDevice(t, 2)
	for _, dt := range floats {
		out := must[*tensor.Tensor](t)(tensor.Zeros(dt, 3, 8))
		b := out.Memory().(*tensor.Host).Bytes()
		for i := range b {
			b[i] = 0xff
			if i >= 8*dt.Size() && i < 16*dt.Size() {
				b[i] = 0
			}
		}
		b[0] = 0x7f // a payload that arithmetic would change
		was := bitsOf(t, out)
		n := 5000
		x := must[*tensor.Tensor](t)(laid(t, dense, dt, []float64{0.5}, 1, 1).Expand(n, 8))
		ids := must[*tensor.Tensor](t)(laid(t, dense, tensor.Int64, []float64{1}, 1).Expand(n))
		ok(t, d.ScatterAdd(bg, out, ids, x))
		now := bitsOf(t, out)
		if !slices.Equal(now[:8], was[:8]) || !slices.Equal(now[16:], was[16:]) {
			t.Errorf("%v: other rows were written", dt)
		}
		for _, v := range values(t, out)[8:16] {
			if v != tensor.Round(dt, 2500) {
				t.Errorf("%v: 5000 halves are %v", dt, v)
			}
		}
	}
}

func TestRowsRefusals(t *testing.T) {
	d := newDevice(t, 1)
	f32 := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, shape...) }
	for _, bad := range []int64{-1, 4, math.MaxInt64, math.MinInt64, 1 << 32} {
		idv := []int64{0, 3, bad, 1}
		ids := must[*tensor.Tensor](t)(tensor.FromSlice(idv, 4))
		out := f32(4, 2)
		was := bitsOf(t, out)
		for _, err := range []error{d.Gather(bg, out, f32(4, 2), ids), d.ScatterAdd(bg, out, ids, f32(4, 2))} {
			if !errors.Is(err, tensor.ErrIndex) || !strings.Contains(err.Error(), "ids[2]") || !strings.Contains(err.Error(), label(bad)) || !strings.Contains(err.Error(), "4") {
				t.Errorf("id %d: %v", bad, err)
			}
		}
		if !slices.Equal(bitsOf(t, out), was) || out.Memory().Version() != 0 {
			t.Error("the output was written")
		}
	}
	ids := laid(t, dense, tensor.Int32, []float64{0, 1, 0}, 3)
	table, rows := f32(4, 2), f32(3, 2)
	view := must[*tensor.Tensor](t)(table.Slice(0, 0, 3))
	for i, c := range []struct {
		err  error
		want error
	}{
		{d.Gather(bg, nil, table, ids), tensor.ErrMissing},
		{d.Gather(bg, rows, nil, ids), tensor.ErrMissing},
		{d.Gather(bg, rows, table, nil), tensor.ErrMissing},
		{d.Gather(bg, f32(3), table, ids), tensor.ErrRank},
		{d.Gather(bg, f32(3, 1), table, ids), tensor.ErrShape},
		{d.Gather(bg, f32(2, 2), table, ids), tensor.ErrShape},
		{d.Gather(bg, rows, table, f32(3)), tensor.ErrDType},
		{d.Gather(bg, laid(t, dense, tensor.Int32, nil, 3, 2), table, ids), tensor.ErrDType},
		{d.Gather(bg, view, table, ids), tensor.ErrAlias},
		{d.Gather(bg, rows, must[*tensor.Tensor](t)(tensor.New(strange{}, tensor.Float32, 4, 2)), ids), tensor.ErrDevice},
		{d.Gather(bg, rows, f32(0, 2), ids), tensor.ErrIndex},
		{d.ScatterAdd(bg, nil, ids, rows), tensor.ErrMissing},
		{d.ScatterAdd(bg, table, nil, rows), tensor.ErrMissing},
		{d.ScatterAdd(bg, table, ids, nil), tensor.ErrMissing},
		{d.ScatterAdd(bg, table, ids, f32(3)), tensor.ErrRank},
		{d.ScatterAdd(bg, table, ids, f32(3, 3)), tensor.ErrShape},
		{d.ScatterAdd(bg, table, f32(3), rows), tensor.ErrDType},
		{d.ScatterAdd(bg, table, ids, view), tensor.ErrAlias},
		{d.ScatterAdd(bg, f32(0, 2), ids, rows), tensor.ErrIndex},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("case %d: %v, want a %v error", i, c.err, c.want)
		}
	}
}

func BenchmarkRows(b *testing.B) {
	d := newDevice(b, 1)
	const rows, n, width = 10000, 1024, 512
	r := rand.New(rand.NewPCG(1, 1))
	table := laid(b, dense, tensor.Float32, numbers(r, rows*width, -1, 1), rows, width)
	x, ids := laid(b, dense, tensor.Float32, numbers(r, n*width, -1, 1), n, width), laid(b, dense, tensor.Int64, someIDs(r, n, rows), n)
	for name, f := range map[string]func() error{
		"gather":      func() error { return d.Gather(bg, x, table, ids) },
		"scatter-add": func() error { return d.ScatterAdd(bg, table, ids, x) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ok(b, f())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(n*width), "ns/element")
		})
	}
}
