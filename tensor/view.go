package tensor

import (
	"fmt"
	"strconv"
)

// view copies the description; the caller changes the copy before it returns it.
func (t *Tensor) view() *Tensor { return (*Arena)(nil).view(t) }

func missing(op string) error {
	return &ArgError{Op: op, Arg: "tensor", Got: "nil", Want: "a tensor", Kind: ErrMissing}
}

// ResolveShape replaces one -1 in shape by the size that makes it hold n elements.
// Errors wrap ErrShape (sizes that do not give n, two -1s), ErrRank or ErrSize.
func ResolveShape(n int, shape []int) (Shape, error) {
	out, err := resolve(n, shape)
	if err != nil {
		return nil, err
	}
	return append(Shape{}, out[:len(shape)]...), nil
}

// resolve is ResolveShape without a slice.
func resolve(n int, shape []int) (out [MaxRank]int, err error) {
	if len(shape) > MaxRank {
		return out, Shape(shape).Check()
	}
	copy(out[:], shape)
	unknown := -1
	for i, d := range shape {
		if d == -1 && unknown < 0 {
			unknown = i
			out[i] = 1
		}
	}
	if err := Shape(out[:len(shape)]).Check(); err != nil {
		return out, err
	}
	k := Shape(out[:len(shape)]).Len()
	if unknown >= 0 && k > 0 && n%k == 0 {
		out[unknown] = n / k
		k = n
	} else if unknown >= 0 {
		k = -1
	}
	if k != n {
		return out, &ArgError{Arg: "shape", Got: Shape(shape).String(), Want: fmt.Sprintf("sizes that hold %d elements", n), Kind: ErrShape}
	}
	return out, Shape(out[:len(shape)]).Check()
}

// Reshape is the same elements, in row-major order, under another shape; one
// size may be -1. It fails with ErrShape where the strides do not allow a view
// (then copy first; ops.Reshape does) or where the sizes differ.
func (t *Tensor) Reshape(shape ...int) (*Tensor, error) { return (*Arena)(nil).Reshape(t, shape...) }

// Reshape is [Tensor.Reshape] in the arena.
func (a *Arena) Reshape(t *Tensor, shape ...int) (*Tensor, error) {
	v, err := a.TryReshape(t, shape...)
	if v == nil && err == nil {
		return nil, &ArgError{Op: "reshape", Arg: "tensor", Got: fmt.Sprintf("%v with strides %v", t.Shape(), Shape(t.Strides())),
			Want: fmt.Sprintf("strides that %v can be a view of", Shape(shape)), Kind: ErrShape}
	}
	return v, err
}

// TryReshape is Reshape that gives neither a tensor nor an error where only the
// strides are in the way.
func (a *Arena) TryReshape(t *Tensor, shape ...int) (*Tensor, error) {
	if t == nil {
		return nil, missing("reshape")
	}
	all, err := resolve(t.length, shape)
	if err != nil {
		return nil, err
	}
	v := a.view(t)
	v.rank, v.shape, v.strides = len(shape), all, [MaxRank]int{}
	to := v.Shape()
	if t.length == 0 || t.IsContiguous() {
		rowMajor(to, &v.strides)
		return v, nil
	}
	// Walk both shapes from the end: a run of old axes that lie behind one
	// another in memory can be cut anew, a gap between runs must fall on a cut.
	old := t.rank - 1
	for i := len(to) - 1; i >= 0; {
		for old >= 0 && t.shape[old] == 1 {
			old--
		}
		if old < 0 {
			for ; i >= 0; i-- { // only sizes of 1 are left
				v.strides[i] = 1
			}
			break
		}
		stride, run := t.strides[old], t.shape[old]
		for old--; old >= 0 && (t.shape[old] == 1 || t.strides[old] == stride*run); old-- {
			run *= t.shape[old]
		}
		got := 1
		for i >= 0 && got*to[i] <= run && run%(got*to[i]) == 0 {
			v.strides[i] = stride * got
			got *= to[i]
			i--
		}
		if got != run {
			return nil, nil
		}
	}
	return v, nil
}

// Permute orders the axes anew: axis i of the result is axis axes[i] of t.
// Each axis must be given exactly once (ErrAxis).
func (t *Tensor) Permute(axes ...int) (*Tensor, error) {
	if t == nil {
		return nil, missing("permute")
	}
	if len(axes) != t.rank {
		return nil, &ArgError{Op: "permute", Arg: "axes", Got: Shape(axes).String(), Want: fmt.Sprintf("each axis of %v once", t.Shape()), Kind: ErrAxis}
	}
	if _, err := t.Shape().Axes(axes); err != nil {
		return nil, err
	}
	v := t.view()
	for i, a := range axes {
		a, _ = t.Shape().Axis(a)
		v.shape[i], v.strides[i] = t.shape[a], t.strides[a]
	}
	return v, nil
}

// Transpose exchanges two axes.
func (t *Tensor) Transpose(axis0, axis1 int) (*Tensor, error) {
	return (*Arena)(nil).Transpose(t, axis0, axis1)
}

// Transpose is [Tensor.Transpose] in the arena.
func (a *Arena) Transpose(t *Tensor, axis0, axis1 int) (*Tensor, error) {
	if t == nil {
		return nil, missing("transpose")
	}
	i, err := t.Shape().Axis(axis0)
	if err != nil {
		return nil, err
	}
	j, err := t.Shape().Axis(axis1)
	if err != nil {
		return nil, err
	}
	v := a.view(t)
	v.shape[i], v.shape[j] = t.shape[j], t.shape[i]
	v.strides[i], v.strides[j] = t.strides[j], t.strides[i]
	return v, nil
}

// Slice keeps the indices start <= i < end of an axis. There is no wrapping:
// 0 <= start <= end <= size, else ErrIndex.
func (t *Tensor) Slice(axis, start, end int) (*Tensor, error) {
	if t == nil {
		return nil, missing("slice")
	}
	a, err := t.Shape().Axis(axis)
	if err != nil {
		return nil, err
	}
	if start < 0 || end < start || end > t.shape[a] {
		return nil, &ArgError{Op: "slice", Arg: "range", Got: fmt.Sprintf("[%d:%d]", start, end),
			Want: fmt.Sprintf("a range of axis %d of %v", axis, t.Shape()), Kind: ErrIndex}
	}
	v := t.view()
	v.shape[a] = end - start
	v.length = v.Shape().Len()
	if v.length > 0 {
		v.offset += start * t.strides[a]
	}
	return v, nil
}

// Select takes one index of an axis and drops the axis; -1 is the last index.
func (t *Tensor) Select(axis, index int) (*Tensor, error) {
	if t == nil {
		return nil, missing("select")
	}
	a, err := t.Shape().Axis(axis)
	if err != nil {
		return nil, err
	}
	n := t.shape[a]
	if index < -n || index >= n {
		return nil, &ArgError{Op: "select", Arg: "index", Got: strconv.Itoa(index),
			Want: fmt.Sprintf("an index of axis %d of %v", axis, t.Shape()), Kind: ErrIndex}
	}
	if index < 0 {
		index += n
	}
	v, err := t.Slice(a, index, index+1)
	if err != nil {
		return nil, err
	}
	return v.Squeeze(a)
}

// Squeeze drops an axis of size 1; another size is ErrShape.
func (t *Tensor) Squeeze(axis int) (*Tensor, error) {
	if t == nil {
		return nil, missing("squeeze")
	}
	a, err := t.Shape().Axis(axis)
	if err != nil {
		return nil, err
	}
	if t.shape[a] != 1 {
		return nil, &ArgError{Op: "squeeze", Arg: fmt.Sprintf("axis %d of %v", axis, t.Shape()), Got: strconv.Itoa(t.shape[a]), Want: "size 1", Kind: ErrShape}
	}
	v := t.view()
	copy(v.shape[a:], t.shape[a+1:])
	copy(v.strides[a:], t.strides[a+1:])
	v.rank--
	v.shape[v.rank], v.strides[v.rank] = 0, 0
	return v, nil
}

// Unsqueeze inserts an axis of size 1 so that it becomes the given axis of the
// result; -1 appends it.
func (t *Tensor) Unsqueeze(axis int) (*Tensor, error) {
	if t == nil {
		return nil, missing("unsqueeze")
	}
	a, err := axisOf(axis, t.rank+1, append(append(Shape{}, t.Shape()...), 1))
	if err != nil {
		return nil, err
	}
	if t.rank == MaxRank {
		return nil, &ArgError{Op: "unsqueeze", Arg: "tensor", Got: t.Shape().String(), Want: fmt.Sprintf("fewer than %d axes", MaxRank), Kind: ErrRank}
	}
	v := t.view()
	copy(v.shape[a+1:], t.shape[a:t.rank])
	copy(v.strides[a+1:], t.strides[a:t.rank])
	v.rank++
	v.shape[a], v.strides[a] = 1, 1
	return v, nil
}

// Expand repeats axes of size 1, and adds axes in front, without copying: their
// stride is 0. A size other than 1 cannot change (ErrShape).
func (t *Tensor) Expand(shape ...int) (*Tensor, error) { return (*Arena)(nil).Expand(t, shape...) }

// Expand is [Tensor.Expand] in the arena.
func (a *Arena) Expand(t *Tensor, shape ...int) (*Tensor, error) {
	if t == nil {
		return nil, missing("expand")
	}
	if err := Shape(shape).Check(); err != nil {
		return nil, err
	}
	extra := len(shape) - t.rank
	ok := extra >= 0
	v := a.view(t)
	v.rank, v.strides = len(shape), [MaxRank]int{}
	copy(v.shape[:], shape)
	for i := 0; ok && i < t.rank; i++ {
		switch {
		case t.shape[i] == shape[extra+i]:
			v.strides[extra+i] = t.strides[i]
		case t.shape[i] != 1:
			ok = false
		}
	}
	if !ok {
		return nil, &ArgError{Op: "expand", Arg: "shape", Got: Shape(shape).String(), Want: fmt.Sprintf("one that %v expands to", t.Shape()), Kind: ErrShape}
	}
	v.length = Shape(shape).Len()
	return v, nil
}
