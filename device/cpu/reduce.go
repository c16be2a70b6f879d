package cpu

import (
	"context"
	"math"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// The order of a reduction. The elements that belong to one output are numbered
// r = 0..R-1 in row-major order of the reduced axes. Element r is added in
// float64 to lane r mod 8 of chunk r / reduceChunk; the lanes of a chunk are
// joined in one fixed order, and the chunks are added in ascending order. How
// the tensor lies in memory decides how the kernel goes about it, never the order.
const (
	lanes       = 8
	reduceChunk = 4096
	columns     = 128 // outputs accumulated together: their lanes stay in the first cache
)

// Reduce folds x to the shape of out.
func (d *Device) Reduce(ctx context.Context, f device.Reduction, out, x *tensor.Tensor) error {
	if err := device.CheckReduce(d.Name(), f, out, x); err != nil {
		return err
	}
	if isWide64(x) {
		return reduce[float64](ctx, d, f, out, x)
	}
	return reduce[float32](ctx, d, f, out, x)
}

// reduction is one call of Reduce.
type reduction[F real] struct {
	f       device.Reduction
	kept    loop      // over the outputs: x, out
	reduced loop      // over the elements of one output, in row-major order: x
	count   int       // R
	chunks  int       // of R
	across  bool      // go along the outputs rather than along the elements of one
	per     int       // outputs of a unit of work, which has one chunk of their elements
	partial []float64 // [chunk][output]: where there are several chunks, their results wait here
	joining bool      // the results of chunks
}

var (
	reductions32 = sync.Pool{New: func() any { return new(reduction[float32]) }}
	reductions64 = sync.Pool{New: func() any { return new(reduction[float64]) }}
)

// folding is one worker's memory.
type folding struct {
	scratch
	results [columns]float64
	acc     [lanes][columns]float64
	along   [lanes]float64 // behind a pointer, for a kernel
}

var folds = sync.Pool{New: func() any { return new(folding) }}

func reduce[F real](ctx context.Context, d *Device, f device.Reduction, out, x *tensor.Tensor) error {
	pool := &reductions32
	if dtypeOf[F]() == tensor.Float64 {
		pool = &reductions64
	}
	p := pool.Get().(*reduction[F])
	defer pool.Put(p)
	*p = reduction[F]{f: f}
	err := p.reduce(ctx, d, out, x)
	*p = reduction[F]{}
	return err
}

func (p *reduction[F]) reduce(ctx context.Context, d *Device, out, x *tensor.Tensor) error {
	for _, t := range []*tensor.Tensor{x, out} {
		if err := p.kept.add(t); err != nil {
			return err
		}
	}
	p.reduced.n = 1 // x again, but from where the kept axes lead
	for i, n := range x.Shape() {
		if out.Dim(i) == n {
			p.kept.axis(n, [maxOperands]int{x.Strides()[i], out.Strides()[i]})
		} else {
			p.reduced.axis(n, [maxOperands]int{x.Strides()[i]})
		}
	}
	p.kept.sort()
	p.kept.merge()
	p.reduced.merge()
	outputs := p.kept.length
	p.count = p.reduced.length
	p.chunks = max(1, (p.count+reduceChunk-1)/reduceChunk)
	width := p.kept.size[p.kept.rank-1]
	p.across = width >= 8 && (p.kept.inner(0) < p.reduced.inner(0) || p.count < 16)
	p.per = max(1, grain/max(1, min(p.count, reduceChunk)))
	if p.across {
		p.per = roundUp(p.per, columns)
	}
	if p.chunks > 1 && outputs > 0 {
		m, err := d.Alloc(8 * p.chunks * outputs)
		if err != nil {
			return err
		}
		defer d.Free(m)
		p.partial = elems[float64](m.(*tensor.Host).Bytes())
	}
	err := d.run(ctx, (outputs+p.per-1)/p.per*p.chunks, p)
	if err == nil && p.partial != nil {
		p.joining = true
		err = d.run(ctx, (outputs+columns-1)/columns, p)
	}
	out.Memory().Written()
	return err
}

func (p *reduction[F]) chunk(unit int) {
	s := folds.Get().(*folding)
	defer folds.Put(s)
	if p.joining {
		p.join(s, unit*columns)
		return
	}
	outputs := p.kept.length
	units := (outputs + p.per - 1) / p.per
	first, chunk := unit%units*p.per, unit/units
	from, to := chunk*reduceChunk, min((chunk+1)*reduceChunk, p.count)
	c := p.kept.from(first, first+p.per)
	done := first
	for n, at := c.next(columns); n > 0; n, at = c.next(columns) {
		r := s.results[:n]
		if p.across {
			p.foldAcross(s, r, at[0], from, to)
		} else {
			for j := range r {
				r[j] = p.foldAlong(s, at[0]+j*p.kept.inner(0), from, to)
			}
		}
		if p.partial != nil {
			copy(p.partial[chunk*outputs+done:], r)
		} else {
			p.finish(r, at[1])
		}
		done += n
	}
}

// join adds the results of the chunks for at most columns outputs.
func (p *reduction[F]) join(s *folding, first int) {
	outputs := p.kept.length
	c := p.kept.from(first, first+columns)
	for n, at := c.next(columns); n > 0; n, at = c.next(columns) {
		r := s.results[:n]
		copy(r, p.partial[first:])
		for chunk := 1; chunk < p.chunks; chunk++ {
			for j, v := range p.partial[chunk*outputs+first:][:n] {
				r[j] = fold(p.f, r[j], v)
			}
		}
		p.finish(r, at[1])
		first += n
	}
}

// finish stores results that are complete.
func (p *reduction[F]) finish(r []float64, at int) {
	for j, v := range r {
		switch {
		case v != v:
			r[j] = math.NaN() // which NaN of several came through depends on the machine
		case p.f == device.Mean || p.f == device.MeanSquare:
			r[j] = v / float64(p.count)
		}
	}
	out := &p.kept.operand[1]
	store(out.bytes, out.dtype, at, p.kept.inner(1), r)
}

// fold joins two results.
func fold(f device.Reduction, a, b float64) float64 {
	switch f {
	case device.Max:
		return max(a, b)
	case device.Min:
		return min(a, b)
	}
	return a + b
}

// start is the result of no elements.
func start(f device.Reduction) float64 {
	switch f {
	case device.Max:
		return math.Inf(-1)
	case device.Min:
		return math.Inf(1)
	}
	return 0
}

// join makes one result of the lanes.
func join(f device.Reduction, a *[lanes]float64) float64 {
	return fold(f, fold(f, fold(f, a[0], a[4]), fold(f, a[2], a[6])), fold(f, fold(f, a[1], a[5]), fold(f, a[3], a[7])))
}

// foldAlong folds elements from..to-1 of the output whose elements begin at base.
func (p *reduction[F]) foldAlong(s *folding, base, from, to int) float64 {
	acc := &s.along
	for i := range acc {
		acc[i] = start(p.f)
	}
	x := &p.kept.operand[0]
	if p.reduced.rank == 1 {
		stride := p.reduced.inner(0)
		for r := from; r < to; r += tile {
			n := min(tile, to-r)
			foldTile(p.f, acc, widened(x, tileOf[F](&s.scratch, 0), n, base+r*stride, stride))
		}
		return join(p.f, acc)
	}
	// Several runs make a tile, so that every tile begins at lane 0.
	buf := tileOf[F](&s.scratch, 0)
	filled := 0
	c := p.reduced.from(from, to)
	for n, at := c.next(tile); n > 0; n, at = c.next(tile - filled) {
		load(buf[filled:filled+n], x.bytes, x.dtype, base+at[0], p.reduced.inner(0))
		if filled += n; filled == tile {
			foldTile(p.f, acc, buf)
			filled = 0
		}
	}
	foldTile(p.f, acc, buf[:filled])
	return join(p.f, acc)
}

// foldTile adds element i to lane i mod 8.
func foldTile[F real](f device.Reduction, acc *[lanes]float64, x []F) {
	if row, k := vectorsFor(x); k != nil {
		run := k.sum
		switch f {
		case device.SumSquares, device.MeanSquare:
			run = k.squares
		case device.Max, device.Min:
			run = nil
		}
		for run != nil && len(row) >= 16 {
			n := min(rowAtOnce, len(row)&^15)
			run(&row[0], n, acc)
			x, row = x[n:], row[n:]
		}
	}
	a0, a1, a2, a3, a4, a5, a6, a7 := acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]
	whole := len(x) / lanes * lanes
	rest := x[whole:]
	x = x[:whole]
	switch f {
	case device.Sum, device.Mean:
		for ; len(x) >= lanes; x = x[lanes:] {
			a0 += float64(x[0])
			a1 += float64(x[1])
			a2 += float64(x[2])
			a3 += float64(x[3])
			a4 += float64(x[4])
			a5 += float64(x[5])
			a6 += float64(x[6])
			a7 += float64(x[7])
		}
	case device.SumSquares, device.MeanSquare:
		for ; len(x) >= lanes; x = x[lanes:] {
			a0 += square(x[0])
			a1 += square(x[1])
			a2 += square(x[2])
			a3 += square(x[3])
			a4 += square(x[4])
			a5 += square(x[5])
			a6 += square(x[6])
			a7 += square(x[7])
		}
	case device.Max:
		for ; len(x) >= lanes; x = x[lanes:] {
			a0 = max(a0, float64(x[0]))
			a1 = max(a1, float64(x[1]))
			a2 = max(a2, float64(x[2]))
			a3 = max(a3, float64(x[3]))
			a4 = max(a4, float64(x[4]))
			a5 = max(a5, float64(x[5]))
			a6 = max(a6, float64(x[6]))
			a7 = max(a7, float64(x[7]))
		}
	case device.Min:
		for ; len(x) >= lanes; x = x[lanes:] {
			a0 = min(a0, float64(x[0]))
			a1 = min(a1, float64(x[1]))
			a2 = min(a2, float64(x[2]))
			a3 = min(a3, float64(x[3]))
			a4 = min(a4, float64(x[4]))
			a5 = min(a5, float64(x[5]))
			a6 = min(a6, float64(x[6]))
			a7 = min(a7, float64(x[7]))
		}
	}
	*acc = [lanes]float64{a0, a1, a2, a3, a4, a5, a6, a7}
	for i, v := range rest {
		acc[i] = fold(f, acc[i], value(f, v))
	}
}

func square[F real](x F) float64 { return float64(float64(x) * float64(x)) }

// value is what an element contributes.
func value[F real](f device.Reduction, x F) float64 {
	if f == device.SumSquares || f == device.MeanSquare {
		return square(x)
	}
	return float64(x)
}

// foldAcross folds elements from..to-1 of neighbouring outputs, the first of
// which begins at base.
func (p *reduction[F]) foldAcross(s *folding, results []float64, base, from, to int) {
	acc := &s.acc
	used := min(lanes, to-from) // the others stay as they start
	for i := range acc {
		for j := range results {
			acc[i][j] = start(p.f)
		}
	}
	x := &p.kept.operand[0]
	stride, n := p.kept.inner(0), len(results)
	lane := 0 // reduceChunk is a multiple of lanes
	c := p.reduced.from(from, to)
	for k, at := c.next(to - from); k > 0; k, at = c.next(to - from) {
		done := 0 // columns
		if dtypeOf[F]() == tensor.Float32 && (p.f == device.Sum || p.f == device.Mean) && stride == 1 && lane == 0 {
			done = sumRows(acc, x.bytes, x.dtype, base+at[0], p.reduced.inner(0), k, n)
		}
		if done == n {
			lane = k % lanes
			continue
		}
		for r := range k {
			row := widened(x, tileOf[F](&s.scratch, 0), n-done, base+at[0]+r*p.reduced.inner(0)+done*stride, stride)
			a := acc[lane][done:][:len(row)]
			lane = (lane + 1) % lanes
			switch p.f {
			case device.Sum, device.Mean:
				addWide(a, row)
			case device.SumSquares, device.MeanSquare:
				for j, v := range row {
					a[j] += square(v)
				}
			case device.Max:
				for j, v := range row {
					a[j] = max(a[j], float64(v))
				}
			case device.Min:
				for j, v := range row {
					a[j] = min(a[j], float64(v))
				}
			}
		}
	}
	if used == 1 {
		copy(results, acc[0][:])
		return
	}
	for j := range results {
		column := [lanes]float64{acc[0][j], acc[1][j], acc[2][j], acc[3][j], acc[4][j], acc[5][j], acc[6][j], acc[7][j]}
		results[j] = join(p.f, &column)
	}
}
