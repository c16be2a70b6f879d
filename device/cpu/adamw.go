package cpu

import (
	"context"
	"math"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.AdamW = (*Device)(nil)

// AdamWStep: see device.AdamW.
func (d *Device) AdamWStep(ctx context.Context, k device.AdamWConstants, w, m, v, grad *tensor.Tensor) error {
	if err := device.CheckAdamW(d.Name(), w, m, v, grad); err != nil {
		return err
	}
	a := adamWCalls.Get().(*adamWCall)
	defer adamWCalls.Put(a)
	if err := a.over(w, m, v, grad); err != nil {
		return err
	}
	a.constants = [8]float64{k.Beta1, 1 - k.Beta1, k.Beta2, 1 - k.Beta2, k.Decay, k.Rate, k.Root, k.Eps}
	a.dense = true
	for i := range a.n {
		a.dense = a.dense && a.rank == 1 && a.inner(i) == 1
	}
	err := d.run(ctx, a.chunks(), a)
	*a = adamWCall{}
	written(w, m, v)
	return err
}

// adamWCall is one call of AdamWStep.
type adamWCall struct {
	loop
	constants [8]float64
	dense     bool
}

var adamWCalls = sync.Pool{New: func() any { return new(adamWCall) }}

func (a *adamWCall) chunk(i int) {
	single := a.operand[0].dtype == tensor.Float32
	c := &a.constants
	if n := min(grain, a.length-i*grain); a.dense && single {
		var x [4][]float32
		for k := range x {
			x[k] = elems[float32](a.operand[k].bytes)[a.operand[k].offset+i*grain:][:n]
		}
		kernels := normKernelsOf(active)
		done := kernels.vectors(n)
		if done > 0 {
			kernels.adamW(&x[0][0], &x[1][0], &x[2][0], &x[3][0], c, done)
		}
		for k := done; k < n; k++ {
			adamW(&x[0][k], &x[1][k], &x[2][k], x[3][k], c)
		}
		return
	}
	cur := a.chunkAt(i)
	for n, at := cur.next(tile); n > 0; n, at = cur.next(tile) {
		if single {
			adamWAt[float32](&a.loop, n, at, c)
		} else {
			adamWAt[float64](&a.loop, n, at, c)
		}
	}
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
