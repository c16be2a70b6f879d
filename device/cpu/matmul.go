package cpu

import (
	"context"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// kBlock is how many products are summed before the sum is added to the result.
const kBlock = 384

// MatMul: element (i,j) is the sum over blocks of kBlock, in order, of block
// sums that run over k in order in one accumulator from 0.
func (d *Device) MatMul(ctx context.Context, out, a, b *tensor.Tensor) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := device.CheckMatMul(d.Name(), out, a, b); err != nil {
		return err
	}
	if out.Len() == 0 {
		return ctx.Err()
	}
	var err error
	if out.DType() == tensor.Float64 || a.DType() == tensor.Float64 || b.DType() == tensor.Float64 {
		err = matMul[float64](ctx, d, out, a, b)
	} else {
		err = matMul[float32](ctx, d, out, a, b)
	}
	out.Memory().Written()
	return err
}

func matMul[F real](ctx context.Context, d *Device, out, a, b *tensor.Tensor) error {
	ob, err := bytesOf(out)
	if err != nil {
		return err
	}
	ab, err := bytesOf(a)
	if err != nil {
		return err
	}
	bb, err := bytesOf(b)
	if err != nil {
		return err
	}
	m, k, n := out.Dim(-2), a.Dim(-1), out.Dim(-1)
	r := out.Rank()
	batch := out.Len() / (m * n)
	// A chunk is a run of rows of one batch entry.
	step := max(1, min(m, 1<<16/max(1, k*n)+16))
	parts := (m + step - 1) / step
	return d.run(ctx, batch*parts, func(chunk int) {
		entry, from := chunk/parts, chunk%parts*step
		oAt, aAt, bAt := out.Offset(), a.Offset(), b.Offset()
		for i, left := r-3, entry; i >= 0; i-- {
			j := left % out.Dim(i)
			left /= out.Dim(i)
			oAt += j * out.Strides()[i]
			aAt += j * a.Strides()[i]
			bAt += j * b.Strides()[i]
		}
		rowA, rowB := make([]F, k), make([]F, n)
		sum, part := make([]F, n), make([]F, n)
		for i := from; i < min(from+step, m); i++ {
			if k > 0 {
				load(rowA, ab, a.DType(), aAt+i*a.Strides()[r-2], a.Strides()[r-1])
			}
			clear(sum)
			for k0 := 0; k0 < k; k0 += kBlock {
				clear(part)
				for j, x := range rowA[k0:min(k0+kBlock, k)] {
					load(rowB, bb, b.DType(), bAt+(k0+j)*b.Strides()[r-2], b.Strides()[r-1])
					for c, y := range rowB {
						part[c] += F(x * y)
					}
				}
				for c, y := range part {
					sum[c] += y
				}
			}
			store(ob, out.DType(), oAt+i*out.Strides()[r-2], out.Strides()[r-1], sum)
		}
	})
}
