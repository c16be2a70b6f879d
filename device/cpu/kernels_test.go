package cpu

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lamina-go/lamina/tensor"
)

// What the tests of all kernels share: devices, tensors that lie in memory in
// different ways, and comparisons.

var (
	floats   = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}
	integers = []tensor.DType{tensor.Int32, tensor.Int64}
	dtypes   = append(slices.Clone(floats), integers...)
	bg       = context.Background()
)

func newDevice(t testing.TB, threads int) *Device {
	d := New(Threads(threads))
	t.Cleanup(func() { d.Close() })
	return d
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layout is a way for a tensor to lie in memory.
type layout int

const (
	dense    layout = iota
	shifted         // dense, but not at the start of the memory
	reversed        // the first axis innermost
	gaps            // unused elements between any two
	rotated         // the last axis outermost
	nLayouts
)

// laid is a tensor of data in a layout. Elements that do not belong to it are NaN.
func laid(t testing.TB, l layout, dtype tensor.DType, data []float64, shape ...int) *tensor.Tensor {
	t.Helper()
	rank := len(shape)
	order := make([]int, rank) // axes, innermost first
	for i := range order {
		switch l {
		case reversed:
			order[i] = i
		case rotated:
			order[i] = (rank + rank - 2 - i) % rank
		default:
			order[i] = rank - 1 - i
		}
	}
	strides := make([]int, rank)
	n := 1
	if l == gaps {
		n = 2
	}
	for _, a := range order {
		strides[a] = n
		n *= max(shape[a], 1)
		if l == gaps {
			n += 3
		}
	}
	offset := 0
	if l == shifted || l == gaps {
		offset = 5
	}
	h := tensor.NewHost((n + offset + 2) * dtype.Size())
	for i := range h.Bytes() {
		h.Bytes()[i] = 0xff // NaN in every format
	}
	x := must[*tensor.Tensor](t)(tensor.NewStrided(h, dtype, shape, strides, offset))
	if data != nil {
		ok(t, x.SetFloat64s(data))
	}
	return x
}

func values(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	return must[[]float64](t)(x.Float64s())
}

func bitsOf(t testing.TB, x *tensor.Tensor) []uint64 {
	t.Helper()
	return must[[]uint64](t)(x.Bits())
}

func sameBits(t testing.TB, what string, got, want *tensor.Tensor) {
	t.Helper()
	g, w := bitsOf(t, got), bitsOf(t, want)
	if len(g) != len(w) {
		t.Fatalf("%s: %d elements, want %d", what, len(g), len(w))
	}
	for i := range g {
		if g[i] != w[i] {
			t.Fatalf("%s: element %d is %#x, want %#x", what, i, g[i], w[i])
		}
	}
}

// outsideIntact checks that a kernel wrote nothing but the tensor's elements.
func outsideIntact(t testing.TB, what string, x *tensor.Tensor) {
	t.Helper()
	h := x.Memory().(*tensor.Host)
	mine := make([]bool, h.Size())
	size := x.DType().Size()
	var mark func(axis, at int)
	mark = func(axis, at int) {
		if axis == x.Rank() {
			for i := range size {
				mine[at*size+i] = true
			}
			return
		}
		for i := range x.Dim(axis) {
			mark(axis+1, at+i*x.Strides()[axis])
		}
	}
	mark(0, x.Offset())
	for i, b := range h.Bytes() {
		if !mine[i] && b != 0xff {
			t.Fatalf("%s: byte %d outside of the tensor was written", what, i)
		}
	}
}

func numbers(r *rand.Rand, n int, lo, hi float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = lo + (hi-lo)*r.Float64()
	}
	return x
}

// rounded is what a tensor of the dtype would hold.
func rounded(d tensor.DType, x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = tensor.Round(d, v)
	}
	return y
}

// ulp is the distance of neighbours around x in a format.
func ulp(d tensor.DType, x float64) float64 {
	digits, least := 0, 0
	switch d {
	case tensor.Float64:
		digits, least = 53, -1074
	case tensor.Float32:
		digits, least = 24, -149
	case tensor.Float16:
		digits, least = 11, -24
	case tensor.BFloat16:
		digits, least = 8, -133
	}
	_, e := math.Frexp(x)
	return math.Ldexp(1, max(e-digits, least))
}

// near compares with a float64 answer: within 1 unit of the format (float64: within tol relative).
func near(d tensor.DType, got, want, tol float64) bool {
	rounded := tensor.Round(d, want)
	switch {
	case got == rounded || got != got && want != want:
		return true
	case math.IsInf(got, 0) || math.IsInf(rounded, 0) || got != got || want != want:
		return false
	case d == tensor.Float64:
		return math.Abs(got-want) <= tol*math.Abs(want)+1e-320
	}
	return math.Abs(got-rounded) <= ulp(d, rounded)
}

func product(shape []int) int { return tensor.Shape(shape).Len() }

func label(parts ...any) string { return fmt.Sprint(parts...) }
