package cpu

import (
	"context"
	"math"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.AdamW = (*Device)(nil)

// AdamWStep: see device.AdamW.
func (d *Device) AdamWStep(ctx context.Context, k device.AdamWConstants, w, m, v, grad *tensor.Tensor) error {
	if err := device.CheckAdamW(d.Name(), w, m, v, grad); err != nil {
		return err
	}
	l, err := newLoop(w, m, v, grad)
	if err != nil {
		return err
	}
	c := &[8]float64{k.Beta1, 1 - k.Beta1, k.Beta2, 1 - k.Beta2, k.Decay, k.Rate, k.Root, k.Eps}
	dense := true
	for i := range l.n {
		dense = dense && l.rank == 1 && l.inner(i) == 1
	}
	kernels := normKernelsOf(active)
	err = d.run(ctx, l.chunks(), func(chunk int) {
		if n := min(grain, l.length-chunk*grain); dense && w.DType() == tensor.Float32 {
			var x [4][]float32
			for i := range x {
				x[i] = elems[float32](l.operand[i].bytes)[l.operand[i].offset+chunk*grain:][:n]
			}
			done := kernels.vectors(n)
			if done > 0 {
				kernels.adamW(&x[0][0], &x[1][0], &x[2][0], &x[3][0], c, done)
			}
			for i := done; i < n; i++ {
				adamW(&x[0][i], &x[1][i], &x[2][i], x[3][i], c)
			}
			return
		}
		cur := l.chunk(chunk)
		for n, at := cur.next(tile); n > 0; n, at = cur.next(tile) {
			if w.DType() == tensor.Float32 {
				adamWAt[float32](l, n, at, c)
			} else {
				adamWAt[float64](l, n, at, c)
			}
		}
	})
	written(w, m, v)
	return err
}

func adamWAt[F real](l *loop, n int, at [maxOperands]int, c *[8]float64) {
	var x [4][]F
	for k := range x {
		x[k] = elems[F](l.operand[k].bytes)
	}
	for i := range n {
		adamW(&x[0][at[0]+i*l.inner(0)], &x[1][at[1]+i*l.inner(1)], &x[2][at[2]+i*l.inner(2)], x[3][at[3]+i*l.inner(3)], c)
	}
}

// adamW is the step of one element; the means are rounded before they are used.
func adamW[F real](w, m, v *F, g F, c *[8]float64) {
	x := float64(g)
	*m = F(math.FMA(x, c[1], float64(float64(*m)*c[0])))
	*v = F(math.FMA(float64(x*x), c[3], float64(float64(*v)*c[2])))
	step := float64(float64(*m)*c[5]) / math.FMA(math.Sqrt(float64(*v)), c[6], c[7])
	*w = F(math.FMA(float64(*w), c[4], -step))
}
