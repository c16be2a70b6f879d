package cpu

import (
	"math"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// The row operations of BlockAttnRes: where rows lie, and what is done with one
// or all of a token's, in assembly or in Go.

// source is a (B,T,D) tensor ready to be read or written row by row.
type source struct {
	bytes      []byte
	dtype      tensor.DType
	at         int // of element (0,0,0)
	sb, st, sd int // strides
}

func sourceOf(t *tensor.Tensor) (source, error) {
	b, err := bytesOf(t)
	if err != nil {
		return source{}, err
	}
	st := t.Strides()
	s := source{bytes: b, dtype: t.DType(), at: t.Offset(), sd: 1}
	switch len(st) {
	case 1: // a weight: one row
		s.sd = st[0]
	default: // (B,T,D), or a cache (B,T,L) or (B,T,L,1)
		s.sb, s.st, s.sd = st[0], st[1], st[2]
	}
	return s, nil
}

// pointer is where row (b,t) begins.
func (s source) pointer(b, t int) unsafe.Pointer {
	return unsafe.Pointer(&s.bytes[(s.at+b*s.sb+t*s.st)*s.dtype.Size()])
}

func (s source) load(dst []float64, b, t int) {
	load(dst, s.bytes, s.dtype, s.at+b*s.sb+t*s.st, s.sd)
}
func (s source) store(b, t int, src []float64) {
	store(s.bytes, s.dtype, s.at+b*s.sb+t*s.st, s.sd, src)
}

func sourcesOf(ts []*tensor.Tensor) ([]source, error) {
	out := make([]source, len(ts))
	for i, t := range ts {
		if t == nil {
			continue // a gradient that is not wanted
		}
		var err error
		if out[i], err = sourceOf(t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// attnKernels are row operations in assembly, on multiples of 16 elements of
// rows that lie one behind another. They give the bits of those in Go.
type attnKernels struct {
	squares func(v unsafe.Pointer, y *float64, n int, lanes *[32]float64)        // v.v and v.y, added to lanes
	dots    func(v unsafe.Pointer, x, y *float64, n int, lanes *[32]float64)     // v.x and v.y, added to lanes
	mix     func(h *float64, rows *unsafe.Pointer, alpha *float64, l, at, n int) // h = sum of alpha times rows, from element at on
	narrow  func(to unsafe.Pointer, from *float64, n int)                        // to = from, rounded
	// to = c0 g + c1 u - c2 v, q += c3 v; past the caches, where they can, if past is not 0.
	slopes func(to, v unsafe.Pointer, g, u, q *float64, c *[4]float64, n, past int)
	fence  func() // after slopes past the caches
}

// atOnce bounds the elements that one call of assembly reads, to well under 100
// microseconds: meanwhile the goroutine cannot be stopped.
const atOnce = 1 << 16

// dot sums a[i]*b[i] in sixteen lanes by index mod 16: the canonical order.
func dot(a, b []float64) float64 {
	var lanes [16]float64
	addLanes(&lanes, a, b)
	return joinLanes(lanes[:])
}

// addLanes adds a[i]*b[i] to lane i mod 16.
func addLanes(lanes *[16]float64, a, b []float64) {
	b = b[:len(a)]
	for half := 0; half < 16; half += 8 {
		l := lanes[half:][:8]
		s0, s1, s2, s3, s4, s5, s6, s7 := l[0], l[1], l[2], l[3], l[4], l[5], l[6], l[7]
		i := half
		for ; i+8 <= len(a); i += 16 {
			x, y := a[i:][:8], b[i:][:8]
			s0 = math.FMA(x[0], y[0], s0)
			s1 = math.FMA(x[1], y[1], s1)
			s2 = math.FMA(x[2], y[2], s2)
			s3 = math.FMA(x[3], y[3], s3)
			s4 = math.FMA(x[4], y[4], s4)
			s5 = math.FMA(x[5], y[5], s5)
			s6 = math.FMA(x[6], y[6], s6)
			s7 = math.FMA(x[7], y[7], s7)
		}
		l[0], l[1], l[2], l[3], l[4], l[5], l[6], l[7] = s0, s1, s2, s3, s4, s5, s6, s7
		for k := 0; i+k < len(a); k++ {
			l[k] = math.FMA(a[i+k], b[i+k], l[k])
		}
	}
}

// joinLanes is the sum of sixteen lanes.
func joinLanes(l []float64) float64 {
	var s [8]float64
	for i := range s {
		s[i] = l[i] + l[i+8]
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

// rest loads what the assembly leaves of a row.
func (r *attnRes) rest(s *attnScratch, row source, b, t int) {
	if r.whole < r.width {
		load(s.v[r.whole:], row.bytes, row.dtype, row.at+b*row.sb+t*row.st+r.whole, 1)
	}
}

// squares is v.v and v.u of a row. Without assembly it leaves the row in s.v.
func (r *attnRes) squares(s *attnScratch, row source, b, t int) (vv, vu float64) {
	if r.asm == nil {
		row.load(s.v, b, t)
		return dot(s.v, s.v), dot(s.v, r.u)
	}
	s.lanes = [32]float64{}
	for i, n := 0, 0; i < r.whole; i += n {
		n = min(atOnce, r.whole-i)
		r.asm.squares(unsafe.Add(row.pointer(b, t), i*row.dtype.Size()), &r.u[i], n, &s.lanes)
	}
	r.rest(s, row, b, t)
	return r.joined(s, s.v, r.u)
}

// dots is v.g and v.u of a row, as squares.
func (r *attnRes) dots(s *attnScratch, row source, b, t int) (vg, vu float64) {
	if r.asm == nil {
		row.load(s.v, b, t)
		return dot(s.v, s.g), dot(s.v, r.u)
	}
	s.lanes = [32]float64{}
	for i, n := 0, 0; i < r.whole; i += n {
		n = min(atOnce, r.whole-i)
		r.asm.dots(unsafe.Add(row.pointer(b, t), i*row.dtype.Size()), &s.g[i], &r.u[i], n, &s.lanes)
	}
	r.rest(s, row, b, t)
	return r.joined(s, s.g, r.u)
}

// joined adds the products with the rest of a row to the lanes and joins them.
func (r *attnRes) joined(s *attnScratch, x, y []float64) (vx, vy float64) {
	for i := r.whole; i < r.width; i++ {
		k := i - r.whole
		s.lanes[k] = math.FMA(s.v[i], x[i], s.lanes[k])
		s.lanes[16+k] = math.FMA(s.v[i], y[i], s.lanes[16+k])
	}
	return joinLanes(s.lanes[:16]), joinLanes(s.lanes[16:])
}

// mix sets s.h to the sum of alpha times rows.
func (r *attnRes) mix(s *attnScratch, b, t int) {
	from := 0 // elements done
	if r.asm != nil {
		from = r.whole
		for l, row := range r.rows {
			s.at[l] = row.pointer(b, t)
		}
		step := max(32, atOnce/len(r.rows)&^31)
		for i := 0; i < r.whole; i += step {
			r.asm.mix(&s.h[i], &s.at[0], &s.alpha[0], len(r.rows), i, min(step, r.whole-i))
		}
		if from == r.width {
			return
		}
	}
	h := s.h[from:]
	for l, row := range r.rows {
		v := s.v[from:]
		load(v, row.bytes, row.dtype, row.at+b*row.sb+t*row.st+from*row.sd, row.sd)
		if l == 0 {
			for i, x := range v { // not 0 + x: the sign of a zero survives
				h[i] = s.alpha[0] * x
			}
			continue
		}
		addScaled(h, s.alpha[l], v)
	}
}

// narrow stores s.h as a row of to.
func (r *attnRes) narrow(s *attnScratch, to source, b, t int) {
	if r.asm == nil || to.sd != 1 {
		to.store(b, t, s.h)
		return
	}
	for i, n := 0, 0; i < r.whole; i += n {
		n = min(atOnce, r.whole-i)
		r.asm.narrow(unsafe.Add(to.pointer(b, t), i*to.dtype.Size()), &s.h[i], n)
	}
	if r.whole < r.width {
		store(to.bytes, to.dtype, to.at+b*to.sb+t*to.st+r.whole, 1, s.h[r.whole:])
	}
}

// slopesOf stores dv = c0 g + c1 u - c2 v of a row and adds c3 v to q, with s.c.
func (r *attnRes) slopesOf(s *attnScratch, row, to source, q []float64, b, t int) {
	c := &s.c
	from := 0
	if r.asm != nil && to.sd == 1 {
		from = r.whole
		for i, n := 0, 0; i < from; i += n {
			n = min(atOnce, from-i)
			r.asm.slopes(unsafe.Add(to.pointer(b, t), i*to.dtype.Size()), unsafe.Add(row.pointer(b, t), i*row.dtype.Size()), &s.g[i], &r.u[i], &q[i], c, n, s.past)
		}
		if from == r.width {
			return
		}
	}
	v, g, u, h := s.v[from:], s.g[from:], r.u[from:], s.h[from:]
	load(v, row.bytes, row.dtype, row.at+b*row.sb+t*row.st+from*row.sd, row.sd)
	for i, x := range v {
		h[i] = math.FMA(-c[2], x, math.FMA(c[1], u[i], c[0]*g[i]))
	}
	addScaled(q[from:], c[3], v)
	if from == 0 {
		to.store(b, t, h)
	} else {
		store(to.bytes, to.dtype, to.at+b*to.sb+t*to.st+from, 1, h)
	}
}

// addScaled: y += c x.
func addScaled(y []float64, c float64, x []float64) {
	x = x[:len(y)]
	for i := range y {
		y[i] = math.FMA(c, x[i], y[i])
	}
}
