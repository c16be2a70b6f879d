package cpu

import (
	"context"
	"math"
	"strconv"
	"sync"

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

// copyCall is one call of copy.
type copyCall struct {
	loop
	move  move
	plane plane
}

// plane is that of two axes, the inner one of the loop and the one before it,
// which is copied in squares where the two tensors lie in another order.
type plane struct {
	rows, cols   int
	down, across int // squares
	squares, per int // of all planes; of a chunk, 0 where there are none
}

var copyCalls = sync.Pool{New: func() any { return new(copyCall) }}

func (d *Device) copy(ctx context.Context, out, x *tensor.Tensor) error {
	c := copyCalls.Get().(*copyCall)
	defer copyCalls.Put(c)
	err := c.over(out, x)
	if err != nil {
		return err
	}
	c.move = moveOf(&c.operand[0], &c.operand[1])
	chunks := c.chunks()
	if axis := c.transposed(); axis >= 0 {
		chunks = c.turn(axis)
	}
	err = d.run(ctx, chunks, c)
	*c = copyCall{}
	out.Memory().Written()
	return err
}

func (c *copyCall) chunk(i int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if c.plane.per > 0 {
		c.copySquares(s, i)
		return
	}
	cur := c.chunkAt(i)
	for n, at := cur.next(grain); n > 0; n, at = cur.next(grain) {
		c.move.run(&c.move, s, n, at[0], c.inner(0), at[1], c.inner(1))
	}
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

// turn makes it a copy by squares of the plane of axis and the innermost axis,
// and gives the number of chunks.
func (c *copyCall) turn(axis int) int {
	in := c.rank - 1
	for ; axis < in-1; axis++ {
		c.swap(axis, axis+1)
	}
	p := &c.plane
	p.rows, p.cols = c.size[axis], c.size[in]
	p.across, p.down = (p.cols+block-1)/block, (p.rows+block-1)/block
	p.squares = c.length / (p.rows * p.cols) * p.down * p.across
	p.per = max(1, grain/(min(p.rows, block)*min(p.cols, block)))
	return (p.squares + p.per - 1) / p.per
}

func (c *copyCall) copySquares(s *scratch, chunk int) {
	p, m := &c.plane, &c.move
	stride := c.stride[c.rank-2]
	for q := chunk * p.per; q < min((chunk+1)*p.per, p.squares); q++ {
		plane, row, col := q/(p.down*p.across), q/p.across%p.down*block, q%p.across*block
		start := (plane*p.rows+row)*p.cols + col
		cur := c.from(start, start+1)
		n := min(block, p.cols-col)
		for r := range min(block, p.rows-row) {
			m.run(m, s, n, cur.at[0]+r*stride[0], c.inner(0), cur.at[1]+r*stride[1], c.inner(1))
		}
	}
}

// move is how elements of one operand are copied to another: run copies n of
// them from index from, from+fromStride, ... to index to, to+toStride, ...
type move struct {
	run     func(m *move, s *scratch, n, to, toStride, from, fromStride int)
	out, in operand
}

// The moves, made once.
var (
	moveU16     = moveInts[uint16, uint16]
	moveU32     = moveInts[uint32, uint32]
	moveU64     = moveInts[uint64, uint64]
	moveI64I32  = moveInts[int32, int64]
	moveI32I64  = moveInts[int64, int32]
	moveFloat64 = moveReals[float64]
	moveFloat32 = moveReals[float32]
)

// moveOf finds how to copy elements of x to out.
func moveOf(out, x *operand) move {
	m := move{run: moveFloat32, out: *out, in: *x}
	switch {
	case out.dtype == x.dtype && out.dtype.Size() == 2:
		m.run = moveU16
	case out.dtype == x.dtype && out.dtype.Size() == 4:
		m.run = moveU32
	case out.dtype == x.dtype:
		m.run = moveU64
	case out.dtype == tensor.Int32:
		m.run = moveI64I32
	case out.dtype == tensor.Int64:
		m.run = moveI32I64
	case out.dtype == tensor.Float64, x.dtype == tensor.Float64, out.dtype.IsHalf() && x.dtype.IsInt():
		m.run = moveFloat64
	}
	return m
}

type integer interface {
	uint16 | uint32 | uint64 | int32 | int64
}

func moveInts[To, From integer](m *move, _ *scratch, n, to, toStride, from, fromStride int) {
	dst, src := elems[To](m.out.bytes), elems[From](m.in.bytes)
	same, isSame := any(src).([]To)
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

func moveReals[F real](m *move, s *scratch, n, to, toStride, from, fromStride int) {
	for n > 0 {
		k := min(n, tile)
		v := widened(&m.in, tileOf[F](s, 0), k, from, fromStride)
		store(m.out.bytes, m.out.dtype, to, toStride, v)
		n, to, from = n-k, to+k*toStride, from+k*fromStride
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
	c := fillCalls.Get().(*fillCall)
	defer fillCalls.Put(c)
	if err := c.over(out); err != nil {
		return err
	}
	switch out.DType() {
	case tensor.Float32:
		c.set, c.bits = setU32, uint64(math.Float32bits(float32(value)))
	case tensor.Float64:
		c.set, c.bits = setU64, math.Float64bits(value)
	case tensor.Float16:
		c.set, c.bits = setU16, uint64(tensor.Float16FromFloat64(value))
	case tensor.BFloat16:
		c.set, c.bits = setU16, uint64(tensor.BFloat16FromFloat64(value))
	case tensor.Int32:
		c.set, c.bits = setU32, uint64(int32(value))
	default:
		c.set, c.bits = setU64, uint64(int64(value))
	}
	err := d.run(ctx, c.chunks(), c)
	*c = fillCall{}
	out.Memory().Written()
	return err
}

// fillCall is one call of Fill.
type fillCall struct {
	loop
	set  func(b []byte, bits uint64, n, at, stride int)
	bits uint64 // of the value
}

var (
	fillCalls = sync.Pool{New: func() any { return new(fillCall) }}

	setU16, setU32, setU64 = set[uint16], set[uint32], set[uint64]
)

func (c *fillCall) chunk(i int) {
	cur := c.chunkAt(i)
	for n, at := cur.next(grain); n > 0; n, at = cur.next(grain) {
		c.set(c.operand[0].bytes, c.bits, n, at[0], c.inner(0))
	}
}

func set[T uint16 | uint32 | uint64](b []byte, bits uint64, n, at, stride int) {
	dst, value := elems[T](b), T(bits)
	if stride == 1 {
		repeat(dst[at:at+n], value)
		return
	}
	for i := range n {
		dst[at+i*stride] = value
	}
}

// repeat sets all of dst to a value: the beginning in a loop, and the rest by
// copies of what there is, of no more than stays in the first cache.
func repeat[T any](dst []T, value T) {
	const first, most = 16, 1024
	n := min(first, len(dst))
	for i := range dst[:n] {
		dst[i] = value
	}
	for n < len(dst) {
		n += copy(dst[n:], dst[:min(n, most)])
	}
}
