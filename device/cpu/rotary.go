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

func rotate[F real](ctx context.Context, d *Device, pool *sync.Pool, out, x, cos, sin *tensor.Tensor, back bool) error {
	if x.Len() == 0 {
		return nil
	}
	from, err := rowsOfTensor(x)
	if err != nil {
		return err
	}
	to, err := rowsOfTensor(out)
	if err != nil {
		return err
	}
	c, err := packedRows[F](cos)
	if err != nil {
		return err
	}
	s, err := packedRows[F](sin)
	if err != nil {
		return err
	}
	steps, width := x.Dim(-2), x.Dim(-1)
	half, rows := width/2, x.Len()/width
	per := max(1, grain/width)
	err = d.run(ctx, (rows+per-1)/per, each(func(chunk int) {
		room := pool.Get().(*rotaryRoom[F])
		defer pool.Put(room)
		room.sign = 1
		if back {
			room.sign = -1
		}
		end := min((chunk+1)*per, rows)
		for i, n := chunk*per, 0; i < end; i += n {
			t := i % steps
			n = min(end-i, steps-t) // rows of one (T,D)
			a, b := grown(&room.x, n*width), grown(&room.y, n*width)
			loadRows(a, from.bytes, from.dtype, from.at(i), from.strides[from.rank-1], from.step, n, width)
			rotateRows(b, a, c[t*half:], s[t*half:], &room.sign, n, half)
			storeRows(to.bytes, to.dtype, to.at(i), to.strides[to.rank-1], to.step, n, width, b, width)
		}
	}))
	out.Memory().Written()
	return err
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
