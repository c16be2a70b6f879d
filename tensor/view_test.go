package tensor

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is a tensor as the plainest thing there is: which element of the memory
// lies at each index, found by computing with indices and never with strides.
type model struct {
	shape []int
	at    func(index []int) int
}

func dense(shape ...int) model {
	return model{shape, func(index []int) int {
		n := 0
		for i, x := range index {
			n = n*shape[i] + x
		}
		return n
	}}
}

// list is the elements in row-major order.
func (m model) list() []int {
	out := []int{}
	index := make([]int, len(m.shape))
	var walk func(axis int)
	walk = func(axis int) {
		if axis == len(m.shape) {
			out = append(out, m.at(index))
			return
		}
		for i := range m.shape[axis] {
			index[axis] = i
			walk(axis + 1)
		}
	}
	walk(0)
	return out
}

func (m model) permute(axes []int) model {
	axes = slices.Clone(axes)
	shape := make([]int, len(axes))
	for i, a := range axes {
		shape[i] = m.shape[a]
	}
	return model{shape, func(index []int) int {
		old := make([]int, len(index))
		for i, a := range axes {
			old[a] = index[i]
		}
		return m.at(old)
	}}
}

func (m model) slice(axis, start, end int) model {
	shape := slices.Clone(m.shape)
	shape[axis] = end - start
	return model{shape, func(index []int) int {
		old := slices.Clone(index)
		old[axis] += start
		return m.at(old)
	}}
}

func (m model) sel(axis, i int) model {
	return model{slices.Delete(slices.Clone(m.shape), axis, axis+1), func(index []int) int {
		return m.at(slices.Insert(slices.Clone(index), axis, i))
	}}
}

func (m model) unsqueeze(axis int) model {
	return model{slices.Insert(slices.Clone(m.shape), axis, 1), func(index []int) int {
		return m.at(slices.Delete(slices.Clone(index), axis, axis+1))
	}}
}

func (m model) expand(shape []int) model {
	return model{slices.Clone(shape), func(index []int) int {
		old := slices.Clone(index[len(shape)-len(m.shape):])
		for i := range old {
			if m.shape[i] == 1 {
				old[i] = 0
			}
		}
		return m.at(old)
	}}
}

func (m model) reshape(shape []int) model {
	list := m.list()
	return model{slices.Clone(shape), func(index []int) int { return list[dense(shape...).at(index)] }}
}

// check compares a tensor whose memory holds 0, 1, 2, ... with its model.
func check(t *testing.T, what string, x *Tensor, m model) {
	t.Helper()
	if !x.Shape().Equal(m.shape) || x.Rank() != len(m.shape) {
		t.Fatalf("%s: shape %v, want %v", what, x.Shape(), Shape(m.shape))
	}
	want := m.list()
	if x.Len() != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, x.Len(), len(want))
	}
	got, err := x.Int64s()
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range got {
		if int(g) != want[i] {
			t.Fatalf("%s of shape %v strides %v: element %d is %d, want %d", what, x.Shape(), x.Strides(), i, g, want[i])
		}
	}
	// The whole description again through NewStrided, which checks the bounds.
	again, err := NewStrided(x.Memory(), x.DType(), x.Shape(), x.Strides(), x.Offset())
	if err != nil || !again.Is(x) {
		t.Fatalf("%s: not accepted as strides: %v", what, err)
	}
	// Whether elements are reached twice, and lie in order without gaps.
	sorted := slices.Clone(want)
	slices.Sort(sorted)
	twice := len(slices.Compact(sorted)) != len(want)
	if twice && !x.HasOverlap() {
		t.Fatalf("%s: an element is reached twice and HasOverlap is false", what)
	}
	inOrder := true
	for i := range want {
		inOrder = inOrder && want[i] == want[0]+i
	}
	if x.IsContiguous() != inOrder {
		t.Fatalf("%s: IsContiguous is %v for %v", what, x.IsContiguous(), want)
	}
}

func counting(t *testing.T, shape ...int) *Tensor {
	t.Helper()
	x := make([]int64, Shape(shape).Len())
	for i := range x {
		x[i] = int64(i)
	}
	v, err := FromSlice(x, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// isView reports by brute force whether elements at these places can be a view
// of a shape: whether some offset and strides give them all.
func isView(list, shape []int) bool {
	if len(list) == 0 {
		return true
	}
	strides := make([]int, len(shape))
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] > 1 {
			strides[i] = list[step] - list[0]
		}
		step *= shape[i]
	}
	i := 0
	ok := true
	var walk func(axis, at int)
	walk = func(axis, at int) {
		if axis == len(shape) {
			ok = ok && list[i] == at
			i++
			return
		}
		for k := range shape[axis] {
			walk(axis+1, at+k*strides[axis])
		}
	}
	walk(0, list[0])
	return ok
}

// factors is a random shape of n elements.
func factors(r *rand.Rand, n int) []int {
	shape := []int{}
	for len(shape) < MaxRank-1 && n != 1 {
		if n == 0 {
			shape = append(shape, r.IntN(3))
			if shape[len(shape)-1] == 0 {
				return shape
			}
			continue
		}
		d := 1 + r.IntN(n)
		for n%d != 0 {
			d--
		}
		shape = append(shape, d)
		n /= d
	}
	if n == 0 {
		return append(shape, 0)
	}
	return append(shape, n)
}

// Random chains of views, each step with negative axes half of the time.
func TestViews(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var views, refused, steps int
	for range 4000 {
		shape := make([]int, r.IntN(5))
		for i := range shape {
			shape[i] = []int{0, 1, 1, 2, 2, 3, 4, 5}[r.IntN(8)]
		}
		x, m := counting(t, shape...), dense(shape...)
		for range 1 + r.IntN(5) {
			steps++
			rank := len(m.shape)
			axis := func(rank int) (plain, given int) {
				a := r.IntN(rank)
				if r.IntN(2) == 0 {
					return a, a - rank
				}
				return a, a
			}
			var v *Tensor
			var err error
			var what string
			switch op := r.IntN(8); {
			case op == 0 && rank > 0:
				what = "permute"
				axes := r.Perm(rank)
				m = m.permute(axes)
				for i := range axes {
					if r.IntN(2) == 0 {
						axes[i] -= rank
					}
				}
				v, err = x.Permute(axes...)
			case op == 1 && rank > 0:
				what = "slice"
				a, g := axis(rank)
				start := r.IntN(m.shape[a] + 1)
				end := start + r.IntN(m.shape[a]-start+1)
				m = m.slice(a, start, end)
				v, err = x.Slice(g, start, end)
			case op == 2 && rank > 0:
				what = "select"
				a, g := axis(rank)
				if m.shape[a] == 0 {
					if _, err := x.Select(g, 0); !errors.Is(err, ErrIndex) {
						t.Fatalf("select of nothing: %v", err)
					}
					continue
				}
				i := r.IntN(m.shape[a])
				n := m.shape[a]
				m = m.sel(a, i)
				if r.IntN(2) == 0 {
					i -= n
				}
				v, err = x.Select(g, i)
			case op == 3 && rank < MaxRank:
				what = "unsqueeze"
				a, g := axis(rank + 1)
				m = m.unsqueeze(a)
				v, err = x.Unsqueeze(g)
			case op == 4 && rank > 0:
				what = "squeeze"
				a, g := axis(rank)
				if m.shape[a] != 1 {
					if _, err := x.Squeeze(g); !errors.Is(err, ErrShape) {
						t.Fatalf("squeeze of size %d: %v", m.shape[a], err)
					}
					continue
				}
				m = m.sel(a, 0)
				v, err = x.Squeeze(g)
			case op == 5 && rank < MaxRank && x.Len() < 1000:
				what = "expand"
				to := slices.Clone(m.shape)
				for i := range to {
					if to[i] == 1 {
						to[i] = r.IntN(4)
					}
				}
				if r.IntN(2) == 0 {
					to = slices.Insert(to, 0, r.IntN(4))
				}
				m = m.expand(to)
				v, err = x.Expand(to...)
			case op == 6 && rank > 1:
				what = "transpose"
				a, g := axis(rank)
				b, h := axis(rank)
				axes := make([]int, rank)
				for i := range axes {
					axes[i] = i
				}
				axes[a], axes[b] = axes[b], axes[a]
				m = m.permute(axes)
				v, err = x.Transpose(g, h)
			default:
				what = "reshape"
				to := factors(r, x.Len())
				given := slices.Clone(to)
				if x.Len() > 0 && len(to) > 0 && r.IntN(3) == 0 {
					given[r.IntN(len(given))] = -1
				}
				v, err = x.Reshape(given...)
				possible := isView(m.list(), to)
				if err != nil {
					refused++
					if possible || !errors.Is(err, ErrShape) {
						t.Fatalf("reshape of %v with strides %v to %v, which can be a view: %v", x.Shape(), x.Strides(), Shape(to), err)
					}
					continue
				}
				views++
				if !possible {
					t.Fatalf("reshape of %v with strides %v to %v gave strides %v, but no strides do", x.Shape(), x.Strides(), Shape(to), v.Strides())
				}
				m = m.reshape(to)
			}
			if err != nil {
				t.Fatalf("%s of %v: %v", what, x.Shape(), err)
			}
			if v.Memory() != x.Memory() || v.DType() != x.DType() {
				t.Fatalf("%s has other memory", what)
			}
			check(t, what, v, m)
			x = v
		}
	}
	if views < 300 || refused < 50 || steps < 5000 {
		t.Errorf("%d reshapes were views and %d refused in %d steps: the test has lost its cases", views, refused, steps)
	}
}

func TestRank8(t *testing.T) {
	x, m := counting(t, 2, 1, 3, 1, 2, 1, 2, 2), dense(2, 1, 3, 1, 2, 1, 2, 2)
	axes := []int{7, 5, 3, 1, 6, 4, 2, 0}
	v, err := x.Permute(axes...)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "permute", v, m.permute(axes))
	if _, err := v.Unsqueeze(0); !errors.Is(err, ErrRank) {
		t.Errorf("a ninth axis: %v", err)
	}
	if _, err := v.Expand(2, 2, 1, 1, 1, 2, 2, 3, 2); !errors.Is(err, ErrRank) {
		t.Errorf("a ninth axis by expand: %v", err)
	}
	if _, err := x.Reshape(2, 1, 3, 1, 2, 1, 2, 2, 1); !errors.Is(err, ErrRank) {
		t.Errorf("a ninth axis by reshape: %v", err)
	}
	if _, err := x.Reshape(2, 1, 3, 1, 2, 1, 2, -1, 1); !errors.Is(err, ErrRank) {
		t.Errorf("a ninth axis by reshape with -1: %v", err)
	}
	if _, err := Zeros(Float32, 1, 1, 1, 1, 1, 1, 1, 1, 1); !errors.Is(err, ErrRank) {
		t.Errorf("nine axes: %v", err)
	}
}

func TestViewErrors(t *testing.T) {
	x := counting(t, 2, 3, 4)
	tests := []struct {
		name string
		view func() (*Tensor, error)
		want error
	}{
		{"permute too few", func() (*Tensor, error) { return x.Permute(0, 1) }, ErrAxis},
		{"permute twice", func() (*Tensor, error) { return x.Permute(0, 1, 1) }, ErrAxis},
		{"permute twice by sign", func() (*Tensor, error) { return x.Permute(0, 2, -1) }, ErrAxis},
		{"permute out of range", func() (*Tensor, error) { return x.Permute(0, 1, 3) }, ErrAxis},
		{"transpose", func() (*Tensor, error) { return x.Transpose(0, 3) }, ErrAxis},
		{"transpose first", func() (*Tensor, error) { return x.Transpose(-4, 0) }, ErrAxis},
		{"slice axis", func() (*Tensor, error) { return x.Slice(3, 0, 1) }, ErrAxis},
		{"slice before", func() (*Tensor, error) { return x.Slice(0, -1, 1) }, ErrIndex},
		{"slice behind", func() (*Tensor, error) { return x.Slice(0, 0, 3) }, ErrIndex},
		{"slice backwards", func() (*Tensor, error) { return x.Slice(1, 2, 1) }, ErrIndex},
		{"slice far", func() (*Tensor, error) { return x.Slice(1, math.MaxInt, math.MaxInt) }, ErrIndex},
		{"select axis", func() (*Tensor, error) { return x.Select(-4, 0) }, ErrAxis},
		{"select behind", func() (*Tensor, error) { return x.Select(1, 3) }, ErrIndex},
		{"select before", func() (*Tensor, error) { return x.Select(1, -4) }, ErrIndex},
		{"select far", func() (*Tensor, error) { return x.Select(1, math.MinInt) }, ErrIndex},
		{"squeeze size", func() (*Tensor, error) { return x.Squeeze(1) }, ErrShape},
		{"squeeze axis", func() (*Tensor, error) { return x.Squeeze(3) }, ErrAxis},
		{"unsqueeze axis", func() (*Tensor, error) { return x.Unsqueeze(4) }, ErrAxis},
		{"unsqueeze before", func() (*Tensor, error) { return x.Unsqueeze(-5) }, ErrAxis},
		{"expand size", func() (*Tensor, error) { return x.Expand(2, 3, 5) }, ErrShape},
		{"expand fewer", func() (*Tensor, error) { return x.Expand(3, 4) }, ErrShape},
		{"expand negative", func() (*Tensor, error) { return x.Expand(2, 3, -1) }, ErrShape},
		{"reshape size", func() (*Tensor, error) { return x.Reshape(5, 5) }, ErrShape},
		{"reshape unknown", func() (*Tensor, error) { return x.Reshape(-1, 5) }, ErrShape},
		{"reshape two unknown", func() (*Tensor, error) { return x.Reshape(-1, -1) }, ErrShape},
		{"reshape negative", func() (*Tensor, error) { return x.Reshape(-2, -12) }, ErrShape},
		{"reshape zero unknown", func() (*Tensor, error) { return x.Reshape(0, -1) }, ErrShape},
		{"reshape overflow", func() (*Tensor, error) { return x.Reshape(math.MaxInt, 24) }, ErrSize},
		{"expand overflow", func() (*Tensor, error) { return x.Expand(math.MaxInt/16, 2, 3, 4) }, ErrSize},
	}
	for _, c := range tests {
		v, err := c.view()
		if v != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, v, err, c.want)
		}
		var arg *ArgError
		if !errors.As(err, &arg) || arg.Got == "" || arg.Want == "" {
			t.Errorf("%s: %v does not say what it got and wanted", c.name, err)
		}
	}
}

func TestZeroSizes(t *testing.T) {
	x, err := Zeros(Float32, 0, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, shape := range [][]int{{0}, {5, 0}, {0, 7, 9}, {0, -1}} {
		v, err := x.Reshape(shape...)
		if len(shape) == 2 && shape[1] == -1 {
			if !errors.Is(err, ErrShape) {
				t.Errorf("the size that makes 0 of 0 was found: %v, %v", v, err)
			}
			continue
		}
		if err != nil || v.Len() != 0 || !v.IsContiguous() {
			t.Errorf("reshape to %v: %v, %v", Shape(shape), v, err)
		}
	}
	if v, err := x.Reshape(-1, 3, 2); err != nil || v.Dim(0) != 0 {
		t.Errorf("(-1,3,2) of (0,3,2): %v, %v", v, err)
	}
	if b, err := x.Bits(); err != nil || len(b) != 0 {
		t.Errorf("bits %v, %v", b, err)
	}
	if x.HasOverlap() || x.Overlaps(x) {
		t.Error("nothing overlaps")
	}
	if err := x.SetFloat64s(nil); err != nil {
		t.Error(err)
	}
	// An empty range at the end of an axis must not point behind the memory.
	y, err := Zeros(Float32, 4)
	if err != nil {
		t.Fatal(err)
	}
	v, err := y.Slice(0, 4, 4)
	if err != nil || v.Len() != 0 {
		t.Fatalf("[4:4] of 4: %v, %v", v, err)
	}
	if _, err := NewStrided(v.Memory(), Float32, v.Shape(), v.Strides(), v.Offset()); err != nil {
		t.Error(err)
	}
}

func TestHugeExpansion(t *testing.T) {
	x, err := Zeros(Float64, 1)
	if err != nil {
		t.Fatal(err)
	}
	v, err := x.Expand(1<<30, 1<<29)
	if err != nil {
		t.Fatal(err)
	}
	if w, err := v.Reshape(1<<29, -1); err != nil || w.Dim(1) != 1<<30 {
		t.Errorf("%v, %v", w, err)
	}
	if _, err := v.Float64s(); !errors.Is(err, ErrSize) {
		t.Errorf("the elements of 2^59: %v", err)
	}
	if _, err := v.Bits(); !errors.Is(err, ErrSize) {
		t.Errorf("the bits of 2^59: %v", err)
	}
}
