package tensor

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestNewStridedBounds(t *testing.T) {
	mem := NewHost(10 * 4)
	big := math.MaxInt
	tests := []struct {
		shape, strides []int
		offset         int
		want           error
	}{
		{[]int{10}, []int{1}, 0, nil},
		{[]int{10}, []int{1}, 1, ErrSize},
		{[]int{11}, []int{1}, 0, ErrSize},
		{[]int{2, 5}, []int{5, 1}, 0, nil},
		{[]int{5, 2}, []int{2, 1}, 0, nil},
		{[]int{5, 2}, []int{2, 2}, 0, ErrSize},
		{[]int{2}, []int{9}, 0, nil},
		{[]int{2}, []int{10}, 0, ErrSize},
		{[]int{}, []int{}, 9, nil},
		{[]int{}, []int{}, 10, ErrSize},
		{[]int{0}, []int{1}, 10, nil},
		{[]int{0}, []int{1}, 11, ErrSize},
		{[]int{1}, []int{1}, -1, ErrSize},
		{[]int{0}, []int{1}, -1, ErrSize},
		{[]int{1}, []int{big}, 0, nil}, // never stepped along
		{[]int{2}, []int{big}, 0, ErrSize},
		{[]int{big / 8}, []int{10}, 0, ErrSize}, // the last index wraps to a negative one
		{[]int{big / 8, 2}, []int{9, 9}, 0, ErrSize},
		{[]int{3}, []int{big/2 + 1}, 0, ErrSize},     // the step wraps to a small number
		{[]int{5}, []int{1 << 62}, 0, ErrSize},       // wraps to 0
		{[]int{1 << 40}, []int{1 << 40}, 0, ErrSize}, //
		{[]int{1 << 59}, []int{0}, 0, nil},           // one element, often
		{[]int{1 << 59, 2}, []int{0, 0}, 0, ErrSize}, // too many elements to count in bytes
		{[]int{1 << 32, 1 << 32}, []int{0, 0}, 0, ErrSize},
		{[]int{0, 1 << 32, 1 << 32}, []int{0, 0, 0}, 0, ErrSize},
		{[]int{1}, []int{1}, big, ErrSize},
		{[]int{2}, []int{1}, big, ErrSize},
		{[]int{2}, []int{-1}, 5, ErrShape},
		{[]int{1}, []int{-1}, 5, ErrShape},
		{[]int{-1}, []int{1}, 0, ErrShape},
		{[]int{2}, []int{1, 1}, 0, ErrShape},
		{[]int{2, 2}, []int{1}, 0, ErrShape},
		{make([]int, 9), make([]int, 9), 0, ErrRank},
	}
	for _, c := range tests {
		v, err := NewStrided(mem, Float32, c.shape, c.strides, c.offset)
		if !errors.Is(err, c.want) || (v == nil) != (c.want != nil) {
			t.Errorf("%v strides %v offset %d: %v, %v, want %v", Shape(c.shape), c.strides, c.offset, v, err, c.want)
		}
	}
	if _, err := New(nil, Float32, 1); !errors.Is(err, ErrMissing) {
		t.Errorf("no memory: %v", err)
	}
	if _, err := New((*Host)(nil), Float32, 0); !errors.Is(err, ErrMissing) {
		t.Errorf("a nil block of memory: %v", err)
	}
	for _, d := range []DType{0, Int64 + 1, 255} {
		if _, err := New(mem, d, 1); !errors.Is(err, ErrDType) {
			t.Errorf("dtype %d: %v", d, err)
		}
	}
	// Memory whose size is no multiple of an element: only whole ones fit.
	odd := NewHost(15)
	if _, err := New(odd, Float64, 1); err != nil {
		t.Error(err)
	}
	if _, err := New(odd, Float64, 2); !errors.Is(err, ErrSize) {
		t.Errorf("two float64 in 15 bytes: %v", err)
	}
}

// NewStrided accepts exactly what stays inside the memory, by brute force.
func TestNewStridedAgainstEveryIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	mem := NewHost(24 * 2)
	accepted := 0
	for range 5000 {
		shape, strides := make([]int, r.IntN(4)), make([]int, 0, 4)
		for i := range shape {
			shape[i] = r.IntN(5)
			strides = append(strides, r.IntN(9))
		}
		offset := r.IntN(26)
		inside, last := offset <= 24, offset
		empty := false
		for i, n := range shape {
			empty = empty || n == 0
			last += max(n-1, 0) * strides[i]
		}
		if !empty {
			inside = last < 24
		}
		v, err := NewStrided(mem, BFloat16, shape, strides, offset)
		if (err == nil) != inside {
			t.Fatalf("%v strides %v offset %d: %v", Shape(shape), strides, offset, err)
		}
		if err == nil {
			accepted++
			if _, err := v.Bits(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if accepted < 500 {
		t.Errorf("only %d were accepted", accepted)
	}
}

func TestOverflowOfSizes(t *testing.T) {
	for _, shape := range [][]int{
		{math.MaxInt}, {math.MaxInt / 8, 2}, {1 << 31, 1 << 31}, {1 << 32, 1 << 32}, {3, math.MaxInt/24 + 1},
		{0, 1 << 32, 1 << 32}, {1 << 32, 1 << 32, 0}, {math.MaxInt, math.MaxInt},
	} {
		for _, make := range []func() (*Tensor, error){
			func() (*Tensor, error) { return Zeros(Float16, shape...) },
			func() (*Tensor, error) { return FromSlice([]float32{}, shape...) },
			func() (*Tensor, error) { return FromFloat64s(Float64, nil, shape...) },
			func() (*Tensor, error) { return New(NewHost(64), Float32, shape...) },
		} {
			if v, err := make(); !errors.Is(err, ErrSize) || v != nil {
				t.Errorf("%v: %v, %v", Shape(shape), v, err)
			}
		}
	}
	// A legal shape that no machine has memory for.
	for _, n := range []int{1 << 55, math.MaxInt / 8} {
		if _, err := Zeros(Float64, n); !errors.Is(err, ErrSize) {
			t.Errorf("%d float64: %v", n, err)
		}
	}
	for _, n := range []int{-1, 0, math.MinInt, math.MaxInt} {
		if h := NewHost(n); h.Size() != 0 {
			t.Errorf("%d bytes are %d", n, h.Size())
		}
	}
}

// Writing through one view moves the version of all, and of no other memory.
func TestVersionIsShared(t *testing.T) {
	x, y := counting(t, 4, 3), counting(t, 4, 3)
	row, err := x.Select(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	turned, err := x.Transpose(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	before := x.Memory().Version()
	if err := row.SetFloat64s([]float64{-1, -2, -3}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*Tensor{x, row, turned} {
		if got := v.Memory().Version(); got != before+1 {
			t.Errorf("version %d, want %d", got, before+1)
		}
	}
	if y.Memory().Version() != 0 {
		t.Error("other memory was counted")
	}
	got, _ := turned.Int64s()
	if want := []int64{0, -1, 6, 9, 1, -2, 7, 10, 2, -3, 8, 11}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// A refused write counts nothing.
	wide, _ := row.Expand(2, 3)
	for name, err := range map[string]error{
		"too few":   x.SetFloat64s([]float64{1}),
		"expanded":  wide.SetFloat64s(make([]float64, 6)),
		"no number": row.SetFloat64s([]float64{1, math.NaN(), 3}),
		"too large": row.SetFloat64s([]float64{1, 2, 0x1p63}),
	} {
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if got := x.Memory().Version(); got != before+1 {
		t.Errorf("version %d after refused writes", got)
	}
	if again, _ := turned.Int64s(); !slices.Equal(again, got) {
		t.Errorf("a refused write changed %v to %v", got, again)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				x.Memory().Written()
				turned.Memory().Version()
			}
		})
	}
	wg.Wait()
	if got := x.Memory().Version(); got != before+4001 {
		t.Errorf("version %d after 4000 writes from 4 goroutines, want %d", got, before+4001)
	}
}

func TestNilTensorIsSafe(t *testing.T) {
	for name, x := range map[string]*Tensor{"nil": nil, "zero value": {}} {
		n := 0
		if x != nil {
			n = 1 // the zero value is a scalar shape without memory
		}
		if x.DType() != 0 || x.Device() != (Device{}) || x.Rank() != 0 || x.Dim(0) != 0 || x.Dim(-1) != 0 || x.Offset() != 0 ||
			len(x.Shape()) != 0 || len(x.Strides()) != 0 || x.Memory() != nil || !x.IsContiguous() || x.HasOverlap() || x.Len() > n {
			t.Errorf("%s: an accessor does not give the zero value", name)
		}
		if x.String() == "" || !x.Is(x) || x.Overlaps(counting(t, 1)) || counting(t, 1).Overlaps(x) || x.Is(counting(t, 1)) {
			t.Errorf("%s: wrong", name)
		}
		_, e1 := x.Float64s()
		_, e2 := x.Int64s()
		_, e3 := x.Bits()
		for _, err := range []error{e1, e2, e3, x.SetFloat64s([]float64{1})} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	}
	var x *Tensor
	for name, view := range map[string]func() (*Tensor, error){
		"reshape":   func() (*Tensor, error) { return x.Reshape(1) },
		"permute":   func() (*Tensor, error) { return x.Permute() },
		"transpose": func() (*Tensor, error) { return x.Transpose(0, 1) },
		"slice":     func() (*Tensor, error) { return x.Slice(0, 0, 0) },
		"select":    func() (*Tensor, error) { return x.Select(0, 0) },
		"squeeze":   func() (*Tensor, error) { return x.Squeeze(0) },
		"unsqueeze": func() (*Tensor, error) { return x.Unsqueeze(0) },
		"expand":    func() (*Tensor, error) { return x.Expand(1) },
	} {
		if v, err := view(); v != nil || !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s of nil: %v, %v", name, v, err)
		}
	}
}

func TestHostData(t *testing.T) {
	data := []float64{0, 1, -2, 0.1, 1e30, math.Inf(-1)}
	for _, d := range []DType{Float32, Float64, Float16, BFloat16} {
		x, err := FromFloat64s(d, data, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			if got[i] != Round(d, data[i]) {
				t.Errorf("%v: %v is stored as %v", d, data[i], got[i])
			}
		}
		if bits, _ := x.Bits(); bits[0] != 0 || bits[1] != map[DType]uint64{Float32: 0x3f800000, Float64: 0x3ff0000000000000, Float16: 0x3c00, BFloat16: 0x3f80}[d] {
			t.Errorf("%v: bits %x", d, bits)
		}
		if _, err := x.Int64s(); !errors.Is(err, ErrDType) {
			t.Errorf("integers of %v: %v", d, err)
		}
	}
	for _, d := range []DType{Int32, Int64} {
		x, err := FromFloat64s(d, []float64{-1.9, 1.9, math.MinInt32}, 3)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := x.Int64s(); !slices.Equal(got, []int64{-1, 1, math.MinInt32}) {
			t.Errorf("%v: %v", d, got)
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), 0x1p63, -0x1p64} {
			if _, err := FromFloat64s(d, []float64{0, bad}, 2); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), "data[1]") {
				t.Errorf("%v as %v: %v", bad, d, err)
			}
		}
	}
	if _, err := FromFloat64s(Int32, []float64{0x1p31}, 1); !errors.Is(err, ErrValue) {
		t.Errorf("2^31 as int32: %v", err)
	}
	if _, err := FromFloat64s(0, nil, 0); !errors.Is(err, ErrDType) {
		t.Errorf("no dtype: %v", err)
	}
	if _, err := FromSlice([]int32{1, 2}, 3); !errors.Is(err, ErrShape) {
		t.Errorf("2 of 3 elements: %v", err)
	}
	if _, err := Zeros(Float32, -1); !errors.Is(err, ErrShape) {
		t.Errorf("size -1: %v", err)
	}
	// The slice is copied.
	mine := []int32{1, 2}
	x, err := FromSlice(mine, 2)
	if err != nil {
		t.Fatal(err)
	}
	mine[0] = 9
	if got, _ := x.Int64s(); got[0] != 1 {
		t.Error("the caller's slice is the memory")
	}
	for _, d := range []DType{dtypeOf(t, []float32{1}), dtypeOf(t, []float64{1}), dtypeOf(t, []int32{1}), dtypeOf(t, []int64{1})} {
		if !d.Valid() {
			t.Errorf("dtype %v", d)
		}
	}
	s, err := FromSlice([]float64{7})
	if err != nil || s.Rank() != 0 || s.Len() != 1 {
		t.Errorf("a scalar: %v, %v", s, err)
	}
}

func dtypeOf[T float32 | float64 | int32 | int64](t *testing.T, x []T) DType {
	t.Helper()
	v, err := FromSlice(x, len(x))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Float64s(); err != nil || got[0] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	return v.DType()
}

// strange is memory of another device.
type strange struct{ WriteCounter }

func (*strange) Device() Device { return NewDevice("strange", 1) }
func (*strange) Size() int      { return 64 }

func TestElsewhere(t *testing.T) {
	x, err := New(&strange{}, Float32, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := x.String(); got != "(2,3) float32 on strange:1" {
		t.Errorf("%q", got)
	}
	_, e1 := x.Float64s()
	_, e2 := x.Bits()
	for _, err := range []error{e1, e2, x.SetFloat64s(make([]float64, 6))} {
		if !errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), "strange:1") {
			t.Errorf("%v", err)
		}
	}
}

func TestOverlaps(t *testing.T) {
	x := counting(t, 4, 4)
	part := func(a, from, to int) *Tensor {
		v, err := x.Slice(a, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	top, bottom, left := part(0, 0, 2), part(0, 2, 4), part(1, 0, 2)
	if top.Overlaps(bottom) || bottom.Overlaps(top) {
		t.Error("two halves overlap")
	}
	if !top.Overlaps(left) || !top.Overlaps(x) || !x.Overlaps(x) {
		t.Error("an overlap was not seen")
	}
	if x.Overlaps(counting(t, 4, 4)) {
		t.Error("other memory overlaps")
	}
	same := part(0, 0, 4)
	if !same.Is(x) || top.Is(bottom) {
		t.Error("Is")
	}
}

func TestNames(t *testing.T) {
	for _, d := range []DType{Float32, Float64, Float16, BFloat16, Int32, Int64} {
		got, err := ParseDType(d.String())
		if err != nil || got != d || !d.Valid() || d.IsFloat() == d.IsInt() {
			t.Errorf("%v: %v, %v", d, got, err)
		}
	}
	for name, want := range map[string]DType{"f32": Float32, "fp32": Float32, "f64": Float64, "fp64": Float64, "f16": Float16, "fp16": Float16, "bf16": BFloat16, "i32": Int32, "i64": Int64} {
		if got, err := ParseDType(name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "invalid", "Float32", "float", " float32", "float8", "int8"} {
		if got, err := ParseDType(name); got != 0 || !errors.Is(err, ErrDType) {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	for d, size := range map[DType]int{Float32: 4, Float64: 8, Float16: 2, BFloat16: 2, Int32: 4, Int64: 8, 0: 0, 7: 0, 255: 0} {
		if d.Size() != size || d.Valid() != (size > 0) {
			t.Errorf("%v has size %d", d, d.Size())
		}
		if wide := d.Wide(); d.IsHalf() != (wide != d) || d.IsHalf() && wide != Float32 {
			t.Errorf("%v widens to %v", d, wide)
		}
	}
	for name, want := range map[string]Device{"cpu": CPU, "ascend": NewDevice("ascend", 0), "ascend:0": NewDevice("ascend", 0), "ascend:12": NewDevice("ascend", 12)} {
		got, err := ParseDevice(name)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if again, err := ParseDevice(got.String()); err != nil || again != got {
			t.Errorf("%s as %q: %v, %v", name, got.String(), again, err)
		}
	}
	for _, name := range []string{"", "cpu:0", "cpu:1", ":0", "ascend:", "ascend:-1", "ascend:-0", "ascend:+1", "ascend:01", "ascend:1:2", "ascend:x", "Ascend", "as cend", "ascend0", "ascend:99999999999999999999", "npu\x00"} {
		if got, err := ParseDevice(name); got != (Device{}) || !errors.Is(err, ErrDevice) {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if got := (Device{}).String(); got != "no device" {
		t.Errorf("%q", got)
	}
	if d := NewDevice("cpu", 1); d.String() == CPU.String() {
		t.Error("two devices have one name")
	}
	if d := NewDevice("ascend", 3); d.Kind() != "ascend" || d.Index() != 3 {
		t.Error(d)
	}
}

func TestShape(t *testing.T) {
	if (Shape{}).Len() != 1 || (Shape{}).String() != "()" || (Shape{2, 3}).String() != "(2,3)" {
		t.Error("a shape's length or name")
	}
	for _, other := range []Shape{{2, 4}, {2, 2}, {3, 3}, {1, 3}, {2}, {2, 3, 1}, {}} {
		if other.Equal(Shape{2, 3}) || (Shape{2, 3}).Equal(other) {
			t.Errorf("%v is (2,3)", other)
		}
	}
	s := Shape{2, 3, 4}
	for axis, want := range map[int]int{0: 0, 2: 2, -1: 2, -3: 0} {
		if got, err := s.Axis(axis); err != nil || got != want {
			t.Errorf("axis %d is %d, %v", axis, got, err)
		}
	}
	for _, axis := range []int{3, -4, math.MaxInt, math.MinInt} {
		if _, err := s.Axis(axis); !errors.Is(err, ErrAxis) {
			t.Errorf("axis %d: %v", axis, err)
		}
	}
	if got, err := s.Axes([]int{-1, 0}); err != nil || !slices.Equal(got, []int{0, 2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := s.Axes(nil); err != nil || !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := s.Axes([]int{1, -2}); !errors.Is(err, ErrAxis) {
		t.Errorf("an axis twice: %v", err)
	}
	if _, err := make(Shape, 9).Axes([]int{8}); !errors.Is(err, ErrRank) {
		t.Errorf("the ninth axis: %v", err)
	}
	if _, err := make(Shape, 9).Axes(nil); !errors.Is(err, ErrRank) {
		t.Errorf("nine axes: %v", err)
	}
	for _, c := range []struct{ a, b, want Shape }{
		{Shape{3, 1}, Shape{1, 4}, Shape{3, 4}},
		{Shape{}, Shape{2, 3}, Shape{2, 3}},
		{Shape{5, 2, 2}, Shape{2, 2}, Shape{5, 2, 2}},
		{Shape{0}, Shape{1}, Shape{0}},
		{Shape{2}, Shape{3}, nil},
		{Shape{0}, Shape{2}, nil},
	} {
		for _, ab := range [][2]Shape{{c.a, c.b}, {c.b, c.a}} {
			got, err := Broadcast(ab[0], ab[1])
			if c.want == nil {
				if !errors.Is(err, ErrShape) {
					t.Errorf("%v and %v: %v, %v", ab[0], ab[1], got, err)
				}
			} else if err != nil || !got.Equal(c.want) {
				t.Errorf("%v and %v: %v, %v", ab[0], ab[1], got, err)
			}
		}
	}
}

// WrapHost uses the bytes themselves where they are aligned.
func TestWrapHost(t *testing.T) {
	b := NewHost(64).Bytes()
	if h := WrapHost(b); &h.Bytes()[0] != &b[0] {
		t.Error("aligned bytes were copied")
	}
	h := WrapHost(b[1:9])
	h.Bytes()[0] = 7
	if b[1] == 7 || h.Size() != 8 {
		t.Error("bytes that are not aligned were used")
	}
	if h := WrapHost(nil); h.Size() != 0 {
		t.Error("nothing has a size")
	}
}

// Lend gives a Host its memory once, and Discard takes it away.
func TestHostLend(t *testing.T) {
	b := NewHost(64).Bytes()
	var hosts [2]Host
	h := &hosts[1]
	if h.Lend(b[1:9], 1) || h.Size() != 0 {
		t.Error("bytes that are not aligned were taken")
	}
	if !h.Lend(b[8:20], "me") || &h.Bytes()[0] != &b[8] || h.Size() != 12 || h.Lender() != "me" || hosts[0].Lender() != nil {
		t.Fatal("the bytes were not taken")
	}
	if h.Lend(b[16:24], "you") || &h.Bytes()[0] != &b[8] || h.Lender() != "me" {
		t.Error("they were exchanged")
	}
	h.Discard()
	if h.Bytes() != nil || h.Size() != 12 || h.Lend(b, 3) || h.Lender() != "me" {
		t.Error("after Discard it has bytes")
	}
	if !hosts[0].Lend(nil, nil) || hosts[0].Size() != 0 || hosts[0].Bytes() != nil {
		t.Error("no bytes are none")
	}
	if own := NewHost(8); own.Lend(b, 1) || own.Lender() != nil || own.Size() != 8 {
		t.Error("memory of its own was exchanged")
	}
	var none *Host
	if none.Lend(b, 1) || none.Lender() != nil {
		t.Error("a nil Host holds something")
	}
}
