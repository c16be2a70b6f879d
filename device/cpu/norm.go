package cpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.Norm = (*Device)(nil)

// normKernels are operations on rows of float32, in float64; on multiples of 16
// elements in assembly, else in Go with the same bits. Sums have sixteen lanes
// by index.
type normKernels struct {
	moments    func(x *float32, c *[2]float64, n int, lanes *[32]float64)        // x - c0 and its square, added to lanes
	normal     func(y, x, w *float32, c *[2]float64, n int)                      // (x - c0) c1 w
	normalBias func(y, x, w, b *float32, c *[2]float64, n int)                   // and b added
	dots       func(g, x, w *float32, c *[4]float64, n int, lanes *[32]float64)  // g w and g w xh, added to lanes, with xh = (x - c0) c1
	slopes     func(dx, g, x, w *float32, c *[4]float64, n int, dw, db *float64) // (g w - c2 - xh c3) c1; g xh and g added to dw and db
	adamW      func(w, m, v, g *float32, c *[8]float64, n int)                   // see adamWStep
}

// vectors is how many of n elements the assembly takes.
func (k *normKernels) vectors(n int) int {
	if k == nil {
		return 0
	}
	return n &^ 15
}

// normRow is one worker's memory for rows of D.
type normRow struct {
	x, g, y []float32
	dw, db  []float64
	lanes   [32]float64
	c2      [2]float64
	c4      [4]float64
}

var normRows = sync.Pool{New: func() any { return new(normRow) }}

// normCall is one call: what its rows share.
type normCall struct {
	*normKernels
	width, rows int
	length      int // rows of a chunk
	center      bool
	eps         float64
	w, b        []float32 // ones where there is no weight; none without bias
	x, y, g, dx operandRows
	mean, rstd  operandRows
	parts       []float64 // of each chunk of a backward: dw, db; nil in a forward
	sum         []float64
}

var normCalls = sync.Pool{New: func() any { return new(normCall) }}

// end makes it ready for another call, which takes its memory.
func (c *normCall) end() {
	*c = normCall{w: c.w[:0], b: c.b[:0], sum: c.sum}
	normCalls.Put(c)
}

// operandRows is a tensor (...,D) row by row.
type operandRows struct {
	operand
	there   bool
	rank    int
	shape   [tensor.MaxRank]int
	strides [tensor.MaxRank]int
	step    int // between elements of a row
}

func rowsOfTensor(t *tensor.Tensor) (operandRows, error) {
	if t == nil {
		return operandRows{}, nil
	}
	o, err := operandOf(t)
	r := operandRows{operand: o, there: true, rank: t.Rank() - 1}
	copy(r.shape[:], t.Shape())
	copy(r.strides[:], t.Strides())
	r.step = r.strides[r.rank]
	return r, err
}

// at is where row i begins.
func (r *operandRows) at(i int) int {
	at := r.offset
	for axis := r.rank - 1; axis >= 0; axis-- {
		at += i % r.shape[axis] * r.strides[axis]
		i /= r.shape[axis]
	}
	return at
}

// row is row i as float32: the memory itself where it lies so, else buf.
func (r *operandRows) row(buf []float32, i int) []float32 {
	return widened(&r.operand, buf, len(buf), r.at(i), r.step)
}

func (r *operandRows) put(i int, x []float32) { store(r.bytes, r.dtype, r.at(i), r.step, x) }

// number is where the only element of row i is, in float64.
func (r *operandRows) number(i int) *float64 { return &elems[float64](r.bytes)[r.at(i)] }

// vector32 makes x a (D) tensor as float32; nil is none.
func vector32(x *[]float32, t *tensor.Tensor) error {
	if t == nil {
		return nil
	}
	o, err := operandOf(t)
	if err == nil {
		load(grown(x, t.Dim(0)), o.bytes, o.dtype, o.offset, t.Strides()[0])
	}
	return err
}

// begin takes the tensors of a call.
func (c *normCall) begin(a *device.NormArgs, y, mean, rstd, grad, dx *tensor.Tensor) error {
	if a.X.DType() == tensor.Float64 {
		return fmt.Errorf("norm: float64 rows need care for their range: %w", errors.ErrUnsupported)
	}
	c.normKernels, c.width, c.center, c.eps = normKernelsOf(active), a.X.Dim(-1), a.Center, a.Eps
	c.rows = a.X.Len() / c.width
	for _, p := range []struct {
		to *operandRows
		t  *tensor.Tensor
	}{{&c.x, a.X}, {&c.y, y}, {&c.mean, mean}, {&c.rstd, rstd}, {&c.g, grad}, {&c.dx, dx}} {
		var err error
		if *p.to, err = rowsOfTensor(p.t); err != nil {
			return err
		}
	}
	if err := vector32(&c.w, a.Weight); err != nil {
		return err
	}
	if a.Weight == nil {
		for i := range grown(&c.w, c.width) {
			c.w[i] = 1
		}
	}
	return vector32(&c.b, a.Bias)
}

// chunks cuts the rows into at most maxChunks runs of equal length.
func (c *normCall) chunks() int {
	c.length = max(1, (c.rows+maxChunks-1)/maxChunks, grain/c.width)
	return (c.rows + c.length - 1) / c.length
}

func (c *normCall) chunk(i int) {
	s := normRows.Get().(*normRow)
	defer normRows.Put(s)
	s.fit(c.width)
	from, to := i*c.length, min((i+1)*c.length, c.rows)
	if c.parts == nil {
		c.forward(s, from, to)
		return
	}
	c.backward(s, from, to)
	copy(c.parts[2*i*c.width:], s.dw)
	copy(c.parts[(2*i+1)*c.width:], s.db)
}

// fit makes room for rows of n.
func (s *normRow) fit(n int) {
	for _, x := range []*[]float32{&s.x, &s.g, &s.y} {
		grown(x, n)
	}
	clear(grown(&s.dw, n))
	clear(grown(&s.db, n))
}

// NormForward: y = (x - mean) rstd weight + bias.
func (d *Device) NormForward(ctx context.Context, a *device.NormArgs, y, mean, rstd *tensor.Tensor) error {
	if err := device.CheckNorm(d.Name(), a, y, mean, rstd); err != nil {
		return err
	}
	c := normCalls.Get().(*normCall)
	defer c.end()
	if err := c.begin(a, y, mean, rstd, nil, nil); err != nil {
		return err
	}
	err := d.run(ctx, c.chunks(), c)
	written(y, mean, rstd)
	return err
}

func (c *normCall) forward(s *normRow, from, to int) {
	for i := from; i < to; i++ {
		x := c.x.row(s.x, i)
		s.c2 = [2]float64{}
		if c.center {
			mean, _ := c.sums(s, x)
			s.c2[0] = mean / float64(c.width)
			*c.mean.number(i) = s.c2[0]
		}
		_, squares := c.sums(s, x)
		s.c2[1] = 1 / math.Sqrt(squares/float64(c.width)+c.eps)
		*c.rstd.number(i) = s.c2[1]
		out := s.y
		direct := c.y.dtype == tensor.Float32 && c.y.step == 1
		if direct {
			out = elems[float32](c.y.bytes)[c.y.at(i):][:c.width]
		}
		c.scaled(s, out, x)
		if !direct {
			c.y.put(i, out)
		}
	}
}

// sums are those of x - c2[0] and its square.
func (c *normCall) sums(s *normRow, x []float32) (sum, squares float64) {
	s.lanes = [32]float64{}
	n := c.vectors(len(x))
	for i := 0; i < n; i += atOnce {
		c.moments(&x[i], &s.c2, min(atOnce, n-i), &s.lanes)
	}
	for i := n; i < len(x); i++ {
		v := float64(x[i]) - s.c2[0]
		s.lanes[i%16] += v
		s.lanes[16+i%16] = math.FMA(v, v, s.lanes[16+i%16])
	}
	return joinLanes(s.lanes[:16]), joinLanes(s.lanes[16:])
}

// scaled is y = (x - c2[0]) c2[1] w + b.
func (c *normCall) scaled(s *normRow, y, x []float32) {
	n := c.vectors(len(x))
	for i := 0; i < n; i += atOnce {
		if k := min(atOnce, n-i); len(c.b) > 0 {
			c.normalBias(&y[i], &x[i], &c.w[i], &c.b[i], &s.c2, k)
		} else {
			c.normal(&y[i], &x[i], &c.w[i], &s.c2, k)
		}
	}
	for i := n; i < len(x); i++ {
		v := float64(float64((float64(x[i])-s.c2[0])*s.c2[1]) * float64(c.w[i]))
		if len(c.b) > 0 {
			v += float64(c.b[i])
		}
		y[i] = float32(v)
	}
}

// NormBackward, with xh = (x - mean) rstd and gw = g weight:
// dx = rstd (gw - mean(gw) - xh mean(gw xh)), the first mean only where x was
// centred; dweight = sum(g xh); dbias = sum(g).
func (d *Device) NormBackward(ctx context.Context, a *device.NormArgs, mean, rstd, gradY, gradX, gradWeight, gradBias *tensor.Tensor) error {
	if err := device.CheckNormBackward(d.Name(), a, mean, rstd, gradY, gradX, gradWeight, gradBias); err != nil {
		return err
	}
	c := normCalls.Get().(*normCall)
	defer c.end()
	if err := c.begin(a, nil, mean, rstd, gradY, gradX); err != nil {
		return err
	}
	chunks := c.chunks()
	mem, err := d.Alloc(2 * chunks * c.width * 8)
	if err != nil {
		return err
	}
	defer d.Free(mem)
	c.parts = elems[float64](mem.(*tensor.Host).Bytes())
	err = d.run(ctx, chunks, c)
	if err == nil {
		err = c.join(chunks, gradWeight, gradBias)
	}
	written(gradX, gradWeight, gradBias)
	return err
}

func (c *normCall) backward(s *normRow, from, to int) {
	for i := from; i < to; i++ {
		x, g := c.x.row(s.x, i), c.g.row(s.g, i)
		s.c4 = [4]float64{0, *c.rstd.number(i), 0, 0}
		if c.center {
			s.c4[0] = *c.mean.number(i)
		}
		c.means(s, g, x)
		out := s.y
		direct := c.dx.there && c.dx.dtype == tensor.Float32 && c.dx.step == 1
		if direct {
			out = elems[float32](c.dx.bytes)[c.dx.at(i):][:c.width]
		}
		c.slope(s, out, g, x)
		if c.dx.there && !direct {
			c.dx.put(i, out)
		}
	}
}

// means sets c4[2] and c4[3] to the means of gw and gw xh.
func (c *normCall) means(s *normRow, g, x []float32) {
	s.lanes = [32]float64{}
	n := c.vectors(len(x))
	for i := 0; i < n; i += atOnce {
		c.dots(&g[i], &x[i], &c.w[i], &s.c4, min(atOnce, n-i), &s.lanes)
	}
	for i := n; i < len(x); i++ {
		gw, xh := float64(float64(g[i])*float64(c.w[i])), float64((float64(x[i])-s.c4[0])*s.c4[1])
		s.lanes[i%16] += gw
		s.lanes[16+i%16] = math.FMA(gw, xh, s.lanes[16+i%16])
	}
	if c.center {
		s.c4[2] = joinLanes(s.lanes[:16]) / float64(len(x))
	}
	s.c4[3] = joinLanes(s.lanes[16:]) / float64(len(x))
}

// slope is dx, and adds to the sums of dw and db.
func (c *normCall) slope(s *normRow, dx, g, x []float32) {
	n := c.vectors(len(x))
	for i := 0; i < n; i += atOnce {
		c.slopes(&dx[i], &g[i], &x[i], &c.w[i], &s.c4, min(atOnce, n-i), &s.dw[i], &s.db[i])
	}
	for i := n; i < len(x); i++ {
		gi, xh := float64(g[i]), float64((float64(x[i])-s.c4[0])*s.c4[1])
		s.dw[i] = math.FMA(gi, xh, s.dw[i])
		s.db[i] += gi
		v := float64(gi*float64(c.w[i])) - s.c4[2]
		dx[i] = float32(math.FMA(-xh, s.c4[3], v) * s.c4[1])
	}
}

// join adds the chunks' sums in order.
func (c *normCall) join(chunks int, gradWeight, gradBias *tensor.Tensor) error {
	for k, to := range []*tensor.Tensor{gradWeight, gradBias} {
		if to == nil {
			continue
		}
		o, err := operandOf(to)
		if err != nil {
			return err
		}
		sum := grown(&c.sum, c.width)
		clear(sum)
		for chunk := range chunks {
			for i, x := range c.parts[(2*chunk+k)*c.width:][:c.width] {
				sum[i] += x
			}
		}
		store(o.bytes, o.dtype, o.offset, to.Strides()[0], sum)
	}
	return nil
}
