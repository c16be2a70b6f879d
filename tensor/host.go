package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/lamina-go/lamina/internal/memory"
)

// FromSlice copies a slice into a new row-major tensor on the host. The dtype
// follows the element type. Errors: a bad shape, or one that does not hold len(data) elements.
func FromSlice[T float32 | float64 | int32 | int64](data []T, shape ...int) (*Tensor, error) {
	var d DType
	switch any(data).(type) {
	case []float32:
		d = Float32
	case []float64:
		d = Float64
	case []int32:
		d = Int32
	case []int64:
		d = Int64
	}
	t, b, err := newHostTensor(d, len(data), shape)
	if err != nil || len(data) == 0 {
		return t, err
	}
	copy(unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(data)), data)
	return t, nil
}

// FromFloat64s is a new row-major tensor on the host with data rounded to dtype
// (once, to nearest even; integer types truncate, and refuse what they cannot
// hold with ErrValue).
func FromFloat64s(dtype DType, data []float64, shape ...int) (*Tensor, error) {
	t, b, err := newHostTensor(dtype, len(data), shape)
	if err == nil {
		err = checkHeld(dtype, data)
	}
	if err != nil {
		return nil, err
	}
	for i, x := range data {
		storeHost(dtype, b, i, x)
	}
	return t, nil
}

// Zeros is a new row-major tensor of zeros on the host.
func Zeros(dtype DType, shape ...int) (*Tensor, error) {
	if err := Shape(shape).Check(); err != nil {
		return nil, err
	}
	t, _, err := newHostTensor(dtype, Shape(shape).Len(), shape)
	return t, err
}

func newHostTensor(dtype DType, n int, shape []int) (*Tensor, []byte, error) {
	if !dtype.Valid() {
		return nil, nil, &ArgError{Arg: "dtype", Got: dtype.String(), Want: "a valid type", Kind: ErrDType}
	}
	if err := Shape(shape).Check(); err != nil {
		return nil, nil, err
	}
	if Shape(shape).Len() != n {
		return nil, nil, &ArgError{Arg: "data", Got: fmt.Sprintf("%d elements", n), Want: fmt.Sprintf("%d for %v", Shape(shape).Len(), Shape(shape)), Kind: ErrShape}
	}
	if !memory.Fits(n, dtype.Size()) {
		return nil, nil, &ArgError{Arg: "shape", Got: Shape(shape).String(), Want: fmt.Sprintf("at most the machine's memory, %d bytes, as %v", memory.Limit(), dtype), Kind: ErrSize}
	}
	h := NewHost(n * dtype.Size())
	t, err := New(h, dtype, shape...)
	return t, h.Bytes(), err
}

// checkHeld reports a number that an integer type cannot hold: Go would give
// one result or another for it, depending on the processor.
func checkHeld(d DType, data []float64) error {
	if !d.IsInt() {
		return nil
	}
	limit := math.Ldexp(1, 8*d.Size()-1)
	for i, x := range data {
		if t := math.Trunc(x); !(t >= -limit && t < limit) {
			return &ArgError{Arg: fmt.Sprintf("data[%d]", i), Got: fmt.Sprint(x), Want: "one that " + d.String() + " holds", Kind: ErrValue}
		}
	}
	return nil
}

func storeHost(d DType, b []byte, i int, x float64) {
	le := binary.NativeEndian
	switch d {
	case Float32:
		le.PutUint32(b[4*i:], math.Float32bits(float32(x)))
	case Float64:
		le.PutUint64(b[8*i:], math.Float64bits(x))
	case Float16:
		le.PutUint16(b[2*i:], Float16FromFloat64(x))
	case BFloat16:
		le.PutUint16(b[2*i:], BFloat16FromFloat64(x))
	case Int32:
		le.PutUint32(b[4*i:], uint32(int32(x)))
	case Int64:
		le.PutUint64(b[8*i:], uint64(int64(x)))
	}
}

func loadHost(d DType, b []byte, i int) float64 {
	le := binary.NativeEndian
	switch d {
	case Float32:
		return float64(math.Float32frombits(le.Uint32(b[4*i:])))
	case Float64:
		return math.Float64frombits(le.Uint64(b[8*i:]))
	case Float16:
		return float64(Float16ToFloat32(le.Uint16(b[2*i:])))
	case BFloat16:
		return float64(BFloat16ToFloat32(le.Uint16(b[2*i:])))
	case Int32:
		return float64(int32(le.Uint32(b[4*i:])))
	case Int64:
		return float64(int64(le.Uint64(b[8*i:])))
	}
	return 0
}

// each calls f with the memory index of every element in row-major order.
func (t *Tensor) each(f func(at int)) {
	if t.length == 0 {
		return
	}
	var index [MaxRank]int
	at := t.offset
	for {
		f(at)
		i := t.rank - 1
		for ; i >= 0; i-- {
			index[i]++
			at += t.strides[i]
			if index[i] < t.shape[i] {
				break
			}
			at -= t.strides[i] * t.shape[i]
			index[i] = 0
		}
		if i < 0 {
			return
		}
	}
}

func (t *Tensor) hostBytes(op string) ([]byte, error) {
	if t == nil {
		return nil, missing(op)
	}
	h, ok := t.mem.(*Host)
	if h.Discarded() {
		return nil, &ArgError{Op: op, Arg: "tensor", Got: t.String() + " in memory that was given back", Want: "one that is still held", Kind: ErrFreed}
	}
	if ok && !memory.Fits(t.length, 8) { // an expanded tensor may have more elements than there is memory for
		return nil, &ArgError{Op: op, Arg: "tensor", Got: t.Shape().String(), Want: "fewer elements", Kind: ErrSize}
	}
	if !ok {
		return nil, &ArgError{Op: op, Arg: "tensor", Got: "on " + t.Device().String(), Want: "memory of the host (download it first)", Kind: ErrDevice}
	}
	return h.Bytes(), nil
}

// Float64s copies the elements, in row-major order, widened to float64 (an
// int64 beyond 2^53 is rounded). The tensor must lie on the host.
func (t *Tensor) Float64s() ([]float64, error) {
	b, err := t.hostBytes("Float64s")
	if err != nil {
		return nil, err
	}
	out := make([]float64, 0, t.length)
	t.each(func(at int) { out = append(out, loadHost(t.dtype, b, at)) })
	return out, nil
}

// Int64s copies the elements of an integer tensor on the host, in row-major order.
func (t *Tensor) Int64s() ([]int64, error) {
	b, err := t.hostBytes("Int64s")
	if err != nil {
		return nil, err
	}
	if !t.dtype.IsInt() {
		return nil, &ArgError{Op: "Int64s", Arg: "tensor", Got: t.dtype.String(), Want: "an integer type", Kind: ErrDType}
	}
	out := make([]int64, 0, t.length)
	t.each(func(at int) {
		if t.dtype == Int32 {
			out = append(out, int64(int32(binary.NativeEndian.Uint32(b[4*at:]))))
		} else {
			out = append(out, int64(binary.NativeEndian.Uint64(b[8*at:])))
		}
	})
	return out, nil
}

// Bits copies the elements' bit patterns, in row-major order: what two results
// must share to be the same to the bit. The tensor must lie on the host.
func (t *Tensor) Bits() ([]uint64, error) {
	b, err := t.hostBytes("Bits")
	if err != nil {
		return nil, err
	}
	out := make([]uint64, 0, t.length)
	t.each(func(at int) {
		switch t.dtype.Size() {
		case 2:
			out = append(out, uint64(binary.NativeEndian.Uint16(b[2*at:])))
		case 4:
			out = append(out, uint64(binary.NativeEndian.Uint32(b[4*at:])))
		default:
			out = append(out, binary.NativeEndian.Uint64(b[8*at:]))
		}
	})
	return out, nil
}

// SetFloat64s writes data, in row-major order and rounded to the dtype, into a
// tensor on the host, and moves the memory's version on. Errors: another
// number of elements, a tensor that lies elsewhere or reaches an element twice,
// a number that an integer type cannot hold. Then nothing was written.
func (t *Tensor) SetFloat64s(data []float64) error {
	b, err := t.hostBytes("SetFloat64s")
	if err != nil {
		return err
	}
	if len(data) != t.length {
		return &ArgError{Op: "SetFloat64s", Arg: "data", Got: fmt.Sprintf("%d elements", len(data)), Want: fmt.Sprintf("%d for %v", t.length, t.Shape()), Kind: ErrShape}
	}
	if t.HasOverlap() {
		return &ArgError{Op: "SetFloat64s", Arg: "tensor", Got: fmt.Sprintf("%v with strides %v", t.Shape(), Shape(t.Strides())), Want: "each element once", Kind: ErrAlias}
	}
	if err := checkHeld(t.dtype, data); err != nil {
		return err
	}
	i := 0
	t.each(func(at int) { storeHost(t.dtype, b, at, data[i]); i++ })
	t.mem.Written()
	return nil
}
