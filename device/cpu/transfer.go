package cpu

import (
	"context"
	"math"
	"strconv"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Upload copies a host tensor to dst, to the bit.
func (d *Device) Upload(ctx context.Context, dst, host *tensor.Tensor) error {
	if err := device.CheckUpload(d.Name(), dst, host); err != nil {
		return err
	}
	return d.copy(ctx, dst, host)
}

// Download copies src to a host tensor, to the bit.
func (d *Device) Download(ctx context.Context, host, src *tensor.Tensor) error {
	if err := device.CheckDownload(d.Name(), host, src); err != nil {
		return err
	}
	return d.copy(ctx, host, src)
}

// Copy converts x to out's dtype, rounding once; within one dtype it is exact to the bit.
func (d *Device) Copy(ctx context.Context, out, x *tensor.Tensor) error {
	if err := device.CheckCopy(d.Name(), out, x); err != nil {
		return err
	}
	return d.copy(ctx, out, x)
}

func (d *Device) copy(ctx context.Context, out, x *tensor.Tensor) error {
	l, err := newLoop(out, x)
	if err != nil {
		return err
	}
	move := mover(&l.operand[0], &l.operand[1])
	if axis := l.transposed(); axis >= 0 {
		err = d.copyTransposed(ctx, l, axis, move)
	} else {
		err = d.run(ctx, l.chunks(), func(chunk int) {
			s := scratches.Get().(*scratch)
			defer scratches.Put(s)
			c := l.chunk(chunk)
			for n, at := c.next(grain); n > 0; n, at = c.next(grain) {
				move(s, n, at[0], l.inner(0), at[1], l.inner(1))
			}
		})
	}
	out.Memory().Written()
	return err
}

// transposed finds the axis along which x lies in order if that is not the
// innermost one, along which out does; -1 if there is none.
func (l *loop) transposed() int {
	if l.inner(1) <= 1 || l.size[l.rank-1] < 8 {
		return -1
	}
	for i := range l.rank - 1 {
		if l.stride[i][1] == 1 && l.size[i] >= 8 {
			return i
		}
	}
	return -1
}

// block is the side of the squares in which a matrix is transposed: the lines
// of memory on both sides stay in the first cache.
const block = 32

// copyTransposed copies square by square of the plane of axis and the innermost axis.
func (d *Device) copyTransposed(ctx context.Context, l *loop, axis int, move moveFunc) error {
	in := l.rank - 1
	for ; axis < in-1; axis++ {
		l.swap(axis, axis+1)
	}
	rows, cols := l.size[axis], l.size[in]
	rowStride := l.stride[axis]
	across, down := (cols+block-1)/block, (rows+block-1)/block
	squares := l.length / (rows * cols) * down * across
	per := max(1, grain/(min(rows, block)*min(cols, block)))
	return d.run(ctx, (squares+per-1)/per, func(chunk int) {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		for q := chunk * per; q < min((chunk+1)*per, squares); q++ {
			plane, row, col := q/(down*across), q/across%down*block, q%across*block
			start := (plane*rows+row)*cols + col
			c := l.from(start, start+1)
			n := min(block, cols-col)
			for r := range min(block, rows-row) {
				move(s, n, c.at[0]+r*rowStride[0], l.inner(0), c.at[1]+r*rowStride[1], l.inner(1))
			}
		}
	})
}

// moveFunc copies n elements from index from, from+fromStride, ... of one
// operand to index to, to+toStride, ... of another.
type moveFunc func(s *scratch, n, to, toStride, from, fromStride int)

// mover finds how to copy elements of x to out.
func mover(out, x *operand) moveFunc {
	switch {
	case out.dtype == x.dtype && out.dtype.Size() == 2:
		return moveInts(elems[uint16](out.bytes), elems[uint16](x.bytes))
	case out.dtype == x.dtype && out.dtype.Size() == 4:
		return moveInts(elems[uint32](out.bytes), elems[uint32](x.bytes))
	case out.dtype == x.dtype:
		return moveInts(elems[uint64](out.bytes), elems[uint64](x.bytes))
	case out.dtype == tensor.Int32:
		return moveInts(elems[int32](out.bytes), elems[int64](x.bytes))
	case out.dtype == tensor.Int64:
		return moveInts(elems[int64](out.bytes), elems[int32](x.bytes))
	case out.dtype == tensor.Float64, x.dtype == tensor.Float64, out.dtype.IsHalf() && x.dtype.IsInt():
		return moveReals[float64](out, x)
	}
	return moveReals[float32](out, x)
}

type integer interface {
	uint16 | uint32 | uint64 | int32 | int64
}

func moveInts[To, From integer](dst []To, src []From) moveFunc {
	same, isSame := any(src).([]To)
	return func(_ *scratch, n, to, toStride, from, fromStride int) {
		switch {
		case toStride == 1 && fromStride == 1 && isSame:
			copy(dst[to:to+n], same[from:from+n])
		case toStride == 1 && fromStride == 0:
			repeat(dst[to:to+n], To(src[from]))
		case toStride == 1:
			dst := dst[to : to+n]
			for i := range dst {
				dst[i] = To(src[from+i*fromStride])
			}
		default:
			for i := range n {
				dst[to+i*toStride] = To(src[from+i*fromStride])
			}
		}
	}
}

func moveReals[F real](out, x *operand) moveFunc {
	return func(s *scratch, n, to, toStride, from, fromStride int) {
		for n > 0 {
			k := min(n, tile)
			v := widened(x, tileOf[F](s, 0), k, from, fromStride)
			store(out.bytes, out.dtype, to, toStride, v)
			n, to, from = n-k, to+k*toStride, from+k*fromStride
		}
	}
}

// Fill sets every element of out to value, rounded once; integers truncate, and
// refuse what they cannot hold.
func (d *Device) Fill(ctx context.Context, out *tensor.Tensor, value float64) error {
	if err := device.CheckFill(d.Name(), out); err != nil {
		return err
	}
	if dt := out.DType(); dt.IsInt() {
		limit := math.Ldexp(1, 8*dt.Size()-1)
		if !(math.Trunc(value) >= -limit && value < limit) {
			return &tensor.ArgError{Op: "fill", Arg: "value", Got: strconv.FormatFloat(value, 'g', -1, 64), Want: "one that " + dt.String() + " holds", Kind: tensor.ErrValue}
		}
	}
	l, err := newLoop(out)
	if err != nil {
		return err
	}
	b := l.operand[0].bytes
	var set func(n, at, stride int)
	switch out.DType() {
	case tensor.Float32:
		set = setter(elems[float32](b), float32(value))
	case tensor.Float64:
		set = setter(elems[float64](b), value)
	case tensor.Float16:
		set = setter(elems[uint16](b), tensor.Float16FromFloat64(value))
	case tensor.BFloat16:
		set = setter(elems[uint16](b), tensor.BFloat16FromFloat64(value))
	case tensor.Int32:
		set = setter(elems[int32](b), int32(value))
	default:
		set = setter(elems[int64](b), int64(value))
	}
	err = d.run(ctx, l.chunks(), func(chunk int) {
		c := l.chunk(chunk)
		for n, at := c.next(grain); n > 0; n, at = c.next(grain) {
			set(n, at[0], l.inner(0))
		}
	})
	out.Memory().Written()
	return err
}

func setter[T any](dst []T, value T) func(n, at, stride int) {
	return func(n, at, stride int) {
		if stride == 1 {
			repeat(dst[at:at+n], value)
			return
		}
		for i := range n {
			dst[at+i*stride] = value
		}
	}
}

// repeat sets all of dst to a value: the beginning in a loop, and the rest by copies of it.
func repeat[T any](dst []T, value T) {
	const some = 1024
	begin := dst[:min(some, len(dst))]
	for i := range begin {
		begin[i] = value
	}
	for i := some; i < len(dst); i += some {
		copy(dst[i:], begin)
	}
}
