package cpu

import (
	"context"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.Rotary = (*Device)(nil)

// RotateHalves: see device.Rotary.
func (d *Device) RotateHalves(ctx context.Context, out, x, cos, sin *tensor.Tensor, back bool) error {
	if err := device.CheckRotary(d.Name(), out, x, cos, sin); err != nil {
		return err
	}
	if isWide64(x) {
		return rotate[float64](ctx, d, &rotaryRooms64, out, x, cos, sin, back)
	}
	return rotate[float32](ctx, d, &rotaryRooms32, out, x, cos, sin, back)
}

// rotaryRoom is one worker's memory: some rows before and after.
type rotaryRoom[F real] struct {
	x, y []F
	sign F // of the sines; behind a pointer, for a kernel
}

var (
	rotaryRooms32 = sync.Pool{New: func() any { return new(rotaryRoom[float32]) }}
	rotaryRooms64 = sync.Pool{New: func() any { return new(rotaryRoom[float64]) }}
)

// rotation is one call of RotateHalves.
type rotation[F real] struct {
	rooms    *sync.Pool
	from, to operandRows
	cos, sin []F
	back     bool
	steps    int
	width    int
	rows     int
	per      int // rows of a chunk
}

var (
	rotations32 = sync.Pool{New: func() any { return new(rotation[float32]) }}
	rotations64 = sync.Pool{New: func() any { return new(rotation[float64]) }}
)

func rotate[F real](ctx context.Context, d *Device, rooms *sync.Pool, out, x, cos, sin *tensor.Tensor, back bool) (err error) {
	if x.Len() == 0 {
		return nil
	}
	pool := &rotations32
	if dtypeOf[F]() == tensor.Float64 {
		pool = &rotations64
	}
	r := pool.Get().(*rotation[F])
	defer func() {
		*r = rotation[F]{}
		pool.Put(r)
	}()
	*r = rotation[F]{rooms: rooms, back: back, steps: x.Dim(-2), width: x.Dim(-1)}
	if r.from, err = rowsOfTensor(x); err != nil {
		return err
	}
	if r.to, err = rowsOfTensor(out); err != nil {
		return err
	}
	if r.cos, err = packedRows[F](cos); err != nil {
		return err
	}
	if r.sin, err = packedRows[F](sin); err != nil {
		return err
	}
	r.rows, r.per = x.Len()/r.width, max(1, grain/r.width)
	err = d.run(ctx, (r.rows+r.per-1)/r.per, r)
	out.Memory().Written()
	return err
}

func (r *rotation[F]) chunk(chunk int) {
	room := r.rooms.Get().(*rotaryRoom[F])
	defer r.rooms.Put(room)
	room.sign = 1
	if r.back {
		room.sign = -1
	}
	half, end := r.width/2, min((chunk+1)*r.per, r.rows)
	for i, n := chunk*r.per, 0; i < end; i += n {
		t := i % r.steps
		n = min(end-i, r.steps-t) // rows of one (T,D)
		a, b := grown(&room.x, n*r.width), grown(&room.y, n*r.width)
		loadRows(a, r.from.bytes, r.from.dtype, r.from.at(i), r.from.strides[r.from.rank-1], r.from.step, n, r.width)
		rotateRows(b, a, r.cos[t*half:], r.sin[t*half:], &room.sign, n, half)
		storeRows(r.to.bytes, r.to.dtype, r.to.at(i), r.to.strides[r.to.rank-1], r.to.step, n, r.width, b, r.width)
	}
}

// packedRows is a tensor of type F in row-major order, a copy if it does not lie so.
func packedRows[F real](t *tensor.Tensor) ([]F, error) {
	r, err := rowsOfTensor(t)
	if err != nil {
		return nil, err
	}
	if t.IsContiguous() {
		return elems[F](r.bytes)[r.offset:][:t.Len()], nil
	}
	x := make([]F, t.Len())
	loadRows(x, r.bytes, r.dtype, r.offset, r.strides[0], r.step, t.Dim(0), t.Dim(1))
	return x, nil
}

// rotateRows turns n rows of two halves, those of x to those of out.
func rotateRows[F real](out, x, cos, sin []F, sign *F, n, half int) {
	done := 0 // columns
	if a, k := vectorsFor(x); k != nil && half >= 16 {
		o, _ := vectorsFor(out)
		c, _ := vectorsFor(cos)
		s, _ := vectorsFor(sin)
		done = half &^ 15
		for j, wide := 0, 0; j < done; j += wide {
			wide = min(rowAtOnce, done-j)
			for i, most := 0, max(1, rowAtOnce/wide); i < n; i += most {
				k.rotate(&o[2*i*half+j], &a[2*i*half+j], &c[i*half+j], &s[i*half+j], any(sign).(*float32), half, min(most, n-i), wide)
			}
		}
		if done == half {
			return
		}
	}
	for i := range n {
		a, b := x[2*i*half:][:half], x[(2*i+1)*half:][:half]
		p, q := out[2*i*half:][:half], out[(2*i+1)*half:][:half]
		c, s := cos[i*half:][:half], sin[i*half:][:half]
		for j := done; j < half; j++ {
			turn := *sign * s[j]
			p[j] = F(a[j]*c[j]) - F(b[j]*turn)
			q[j] = F(b[j]*c[j]) + F(a[j]*turn)
		}
	}
}
