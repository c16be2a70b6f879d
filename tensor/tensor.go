package tensor

import (
	"fmt"
	"strings"
)

// Tensor is a view of a Memory: element (i, j, ...) lies at element
// offset + i*strides[0] + j*strides[1] + ... Strides are counted in elements
// and are never negative; an axis that was expanded has stride 0.
type Tensor struct {
	dtype   DType
	rank    int
	shape   [MaxRank]int
	strides [MaxRank]int
	offset  int
	length  int
	mem     Memory
}

// New is a row-major tensor at the start of mem. Errors: an invalid dtype, a
// bad shape, no memory, or memory that is too small.
func New(mem Memory, dtype DType, shape ...int) (*Tensor, error) {
	return (*Arena)(nil).New(mem, dtype, shape...)
}

func rowMajor(shape []int, strides *[MaxRank]int) {
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= max(shape[i], 1)
	}
}

// NewStrided is a tensor with the given strides and offset, both in elements.
// Besides the errors of New: strides of another count than the shape or
// negative ones (ErrShape), and elements outside mem (ErrSize).
func NewStrided(mem Memory, dtype DType, shape, strides []int, offset int) (*Tensor, error) {
	if err := Shape(shape).Check(); err != nil {
		return nil, err
	}
	if len(strides) != len(shape) {
		return nil, &ArgError{Arg: "strides", Got: Shape(strides).String(), Want: fmt.Sprintf("%d of them", len(shape)), Kind: ErrShape}
	}
	t := &Tensor{rank: len(shape)}
	copy(t.strides[:], strides)
	if err := t.lay(mem, dtype, shape, offset); err != nil {
		return nil, err
	}
	return t, nil
}

// lay completes a tensor that has its strides.
func (t *Tensor) lay(mem Memory, dtype DType, shape []int, offset int) error {
	if !dtype.Valid() {
		return &ArgError{Arg: "dtype", Got: dtype.String(), Want: "a valid type", Kind: ErrDType}
	}
	if h, ok := mem.(*Host); mem == nil || ok && h == nil {
		return &ArgError{Arg: "memory", Got: "nil", Want: "a block of bytes", Kind: ErrMissing}
	}
	if err := Shape(shape).Check(); err != nil {
		return err
	}
	t.dtype, t.offset, t.length, t.mem = dtype, offset, Shape(shape).Len(), mem
	copy(t.shape[:], shape)
	limit := mem.Size() / dtype.Size()
	fits := offset >= 0 && offset <= limit
	last := offset
	for i, n := range shape {
		stride := t.strides[i]
		if stride < 0 {
			return &ArgError{Arg: "strides", Got: Shape(t.Strides()).String(), Want: "no negative stride", Kind: ErrShape}
		}
		if fits && t.length > 0 && n > 1 {
			if stride > limit {
				fits = false
				continue
			}
			step := stride * (n - 1) // both below 2^60: checked shape, and memory that exists
			if n-1 > 0 && stride != 0 && step/(n-1) != stride || last > limit-step {
				fits = false
				continue
			}
			last += step
		}
	}
	if !fits || t.length > 0 && last >= limit {
		return &ArgError{Arg: "memory", Got: fmt.Sprintf("%d bytes", mem.Size()),
			Want: fmt.Sprintf("room for %s %v with strides %v at offset %d", dtype, t.Shape(), Shape(t.Strides()), offset), Kind: ErrSize}
	}
	return nil
}

// DType is the element type.
func (t *Tensor) DType() DType {
	if t == nil {
		return 0
	}
	return t.dtype
}

// Device is where the memory lies.
func (t *Tensor) Device() Device {
	if t == nil || t.mem == nil {
		return Device{}
	}
	return t.mem.Device()
}

// Shape is the sizes of the axes. The caller must not change it.
func (t *Tensor) Shape() Shape {
	if t == nil {
		return nil
	}
	return t.shape[:t.rank:t.rank]
}

// Strides is the distance in elements between neighbours along each axis. The
// caller must not change it.
func (t *Tensor) Strides() []int {
	if t == nil {
		return nil
	}
	return t.strides[:t.rank:t.rank]
}

// Offset is the element of the memory at which element (0, 0, ...) lies.
func (t *Tensor) Offset() int {
	if t == nil {
		return 0
	}
	return t.offset
}

// Rank is the number of axes.
func (t *Tensor) Rank() int {
	if t == nil {
		return 0
	}
	return t.rank
}

// Dim is the size of an axis, negative ones counted from the end; 0 if there is no such axis.
func (t *Tensor) Dim(axis int) int {
	if axis < 0 {
		axis += t.Rank()
	}
	if axis < 0 || axis >= t.Rank() {
		return 0
	}
	return t.shape[axis]
}

// Len is the number of elements.
func (t *Tensor) Len() int {
	if t == nil {
		return 0
	}
	return t.length
}

// Memory is the block of bytes that the tensor is a view of.
func (t *Tensor) Memory() Memory {
	if t == nil {
		return nil
	}
	return t.mem
}

// IsContiguous reports whether the elements lie in row-major order without gaps.
func (t *Tensor) IsContiguous() bool {
	if t == nil || t.length == 0 {
		return true
	}
	n := 1
	for i := t.rank - 1; i >= 0; i-- {
		if t.shape[i] != 1 {
			if t.strides[i] != n {
				return false
			}
			n *= t.shape[i]
		}
	}
	return true
}

// Is reports whether two tensors are the same view of the same memory.
func (t *Tensor) Is(o *Tensor) bool {
	if t == nil || o == nil {
		return t == o
	}
	return t.mem == o.mem && t.dtype == o.dtype && t.rank == o.rank && t.shape == o.shape && t.strides == o.strides && t.offset == o.offset
}

// Overlaps reports whether two tensors may share bytes: whether the ranges from
// their first to their last byte intersect. Views that interleave without
// sharing a byte count as overlapping.
func (t *Tensor) Overlaps(o *Tensor) bool {
	if t == nil || o == nil || t.mem != o.mem || t.length == 0 || o.length == 0 {
		return false
	}
	t0, t1 := t.extent()
	o0, o1 := o.extent()
	return t0 < o1 && o0 < t1
}

// HasOverlap reports whether the tensor may reach one byte by two indices, as
// an expanded tensor does. Such a tensor cannot be written.
func (t *Tensor) HasOverlap() bool {
	if t == nil || t.length <= 1 {
		return false
	}
	// Axes in ascending order of stride must each step over the extent of those before.
	var used [MaxRank]bool
	reach := 0
	for range t.rank {
		best := -1
		for i := 0; i < t.rank; i++ {
			if !used[i] && t.shape[i] > 1 && (best < 0 || t.strides[i] < t.strides[best]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		used[best] = true
		if t.strides[best] <= reach {
			return true
		}
		reach += t.strides[best] * (t.shape[best] - 1)
	}
	return false
}

// extent is the range of bytes from the first element to behind the last.
func (t *Tensor) extent() (from, to int) {
	last := t.offset
	for i := 0; i < t.rank; i++ {
		last += (t.shape[i] - 1) * t.strides[i]
	}
	return t.offset * t.dtype.Size(), (last + 1) * t.dtype.Size()
}

// String describes the tensor, such as "(2,3) bfloat16" or, elsewhere than on the host, "(2,3) bfloat16 on ascend:0"; it shows no elements.
func (t *Tensor) String() string {
	if t == nil {
		return "nil"
	}
	var b strings.Builder
	b.WriteString(t.Shape().String())
	b.WriteByte(' ')
	b.WriteString(t.dtype.String())
	if d := t.Device(); d != CPU {
		b.WriteString(" on ")
		b.WriteString(d.String())
	}
	return b.String()
}
