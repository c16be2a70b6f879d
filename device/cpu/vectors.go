package cpu

import (
	"math"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// vectorKernels are loops over rows of float32 in assembly, for multiples of 16
// elements. The functions below do the rest in Go, and all of it where there is
// no assembly, with the same bits. A call takes at most rowAtOnce elements.
type vectorKernels struct {
	add, sub, mul, div func(out, a, b *float32, n int)
	addWide            func(sum *float64, x *float32, n int)          // sum += x
	top                func(x *float32, n int, lanes *[16]float32)    // the larger of each, in lanes by index
	dot                func(a, b *float32, n int, lanes *[16]float64) // a b, added to lanes by index
	sum, squares       func(x *float32, n int, lanes *[lanes]float64) // x, and its square, added to lanes by index
	slope              func(t, p *float32, c *[2]float64, n int)      // t = p (t - c[0]) c[1]
	scale              func(x *float32, c *float64, n int)            // x = c x
	shift              func(y, x *float32, c *[2]float64, n int)      // y = x - c[0] - c[1]
	subtract           func(t, p *float32, c *float64, n int)         // t = t - c p
	// Pairs of the two halves of rows turned, n columns of each; see rotateRows.
	rotate func(out, x, cos, sin, sign *float32, half, rows, n int)
	// Rows of n elements, stride bytes apart, as float32 one behind another.
	widenBF16, widenF16, widenF32 func(to *float32, from unsafe.Pointer, stride, rows, n int)
	// The other way round, from rows ld elements apart; n is a multiple of 32.
	narrowBF16, narrowF16 func(to unsafe.Pointer, stride int, from *float32, ld, rows, n int)
	// Rows of n elements, stride bytes apart, added to the lanes in turn, ld apart.
	sumBF16, sumF16, sumF32 func(sums *float64, ld int, x unsafe.Pointer, stride, rows, n int)
}

// rowAtOnce bounds the elements of one call, to well under 100 microseconds.
const rowAtOnce = 1 << 14

// vectorsFor is x as float32 and the kernels of the tier; nil where there are none for F.
func vectorsFor[F real](x []F) ([]float32, *vectorKernels) {
	if y, ok := any(x).([]float32); ok {
		return y, vectorKernelsOf(active)
	}
	return nil, nil
}

// rowOp is the kernel of an arithmetic operation on float32, nil if there is none.
func (k *vectorKernels) rowOp(f device.Binary) func(out, a, b *float32, n int) {
	if k == nil {
		return nil
	}
	switch f {
	case device.Add:
		return k.add
	case device.Sub:
		return k.sub
	case device.Mul:
		return k.mul
	case device.Div:
		return k.div
	}
	return nil
}

// binaryRows is a function of two numbers that vectors compute.
func binaryRows(c *constants, out []float32, in *[maxOperands - 1][]float32) {
	a, b := in[0][:len(out)], in[1][:len(out)]
	done := len(out) &^ 15 // a tile at most
	if done > 0 {
		c.map2(&out[0], &a[0], &b[0], done)
	}
	if done < len(out) {
		in[0], in[1] = a[done:], b[done:]
		c.rest(c, out[done:], in)
	}
}

// addTo: y += x.
func addTo[F real](y, x []F) {
	x = x[:len(y)]
	done := 0
	if a, k := vectorsFor(y); k != nil {
		b, _ := vectorsFor(x)
		for n := 0; done < len(y)&^15; done += n {
			n = min(rowAtOnce, len(y)&^15-done)
			k.add(&a[done], &a[done], &b[done], n)
		}
	}
	for i, v := range x[done:] {
		y[done+i] += v
	}
}

// sumRows adds rows to the lanes in turn, from the first on: rows of b that
// begin stride elements apart, of which it takes as many columns as it gives.
func sumRows(acc *[lanes][columns]float64, b []byte, d tensor.DType, at, stride, rows, n int) int {
	k := vectorKernelsOf(active)
	if k == nil || rows == 0 || n < 16 {
		return 0
	}
	run := k.sumF32
	switch d {
	case tensor.BFloat16:
		run = k.sumBF16
	case tensor.Float16:
		run = k.sumF16
	case tensor.Float32:
	default:
		return 0
	}
	n &^= 15
	most := rowAtOnce / n &^ (lanes - 1)
	for r := 0; r < rows; r += most {
		run(&acc[0][0], columns, unsafe.Pointer(&b[(at+r*stride)*d.Size()]), stride*d.Size(), min(most, rows-r), n)
	}
	return n
}

// addWide: sum += x.
func addWide[F real](sum []float64, x []F) {
	sum = sum[:len(x)]
	done := 0
	if a, k := vectorsFor(x); k != nil {
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.addWide(&sum[done], &a[done], n)
		}
	}
	for i, v := range x[done:] {
		sum[done+i] += float64(v)
	}
}

// rowScratch is memory of the functions that follow: what a kernel gets by
// pointer must not be on the stack.
type rowScratch struct {
	c     [2]float64
	lanes [16]float64
	tops  [16]float32
	tail  [16]float32
	sums  [16]float64 // of the tail
}

// topOf is the largest of x that is a number, -Inf where none is.
func topOf[F real](s *rowScratch, x []F) float64 {
	done, best := 0, math.Inf(-1)
	if a, k := vectorsFor(x); k != nil && len(x) >= 16 {
		for i := range s.tops {
			s.tops[i] = float32(best)
		}
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.top(&a[done], n, &s.tops)
		}
		for _, v := range s.tops {
			best = max(best, float64(v))
		}
	}
	most := F(best)
	for _, v := range x[done:] {
		if v > most {
			most = v
		}
	}
	return float64(most)
}

// dotWide is the sum of a b, each product in float64, in sixteen lanes by index.
func dotWide[F real](s *rowScratch, a, b []F) float64 {
	b = b[:len(a)]
	s.lanes = [16]float64{}
	done := 0
	if x, k := vectorsFor(a); k != nil {
		y, _ := vectorsFor(b)
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.dot(&x[done], &y[done], n, &s.lanes)
		}
	}
	for i, v := range a[done:] {
		s.lanes[i%16] += float64(float64(v) * float64(b[done+i]))
	}
	return joinLanes(s.lanes[:])
}

// softmaxSlope: t = p (t - mean) scale, in float64.
func softmaxSlope[F real](s *rowScratch, t, p []F, mean, scale float64) {
	p = p[:len(t)]
	done := 0
	if x, k := vectorsFor(t); k != nil {
		y, _ := vectorsFor(p)
		s.c = [2]float64{mean, scale}
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.slope(&x[done], &y[done], &s.c, n)
		}
	}
	for i, x := range t[done:] {
		t[done+i] = F(float64(float64(p[done+i])*(float64(x)-mean)) * scale)
	}
}

// scaleBy: x = c x, in float64.
func scaleBy[F real](s *rowScratch, x []F, c float64) {
	done := 0
	if a, k := vectorsFor(x); k != nil {
		s.c[0] = c
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.scale(&a[done], &s.c[0], n)
		}
	}
	for i, v := range x[done:] {
		x[done+i] = F(float64(v) * c)
	}
}

// shiftBy: y = x - c - d, in float64.
func shiftBy(s *rowScratch, y, x []float32, c, d float64) {
	x = x[:len(y)]
	done := 0
	if k := vectorKernelsOf(active); k != nil {
		s.c = [2]float64{c, d}
		for n := 0; done < len(x)&^15; done += n {
			n = min(rowAtOnce, len(x)&^15-done)
			k.shift(&y[done], &x[done], &s.c, n)
		}
	}
	for i, v := range x[done:] {
		y[done+i] = float32(float64(v) - c - d)
	}
}

// subtractTimes: t -= c p, fused in float64.
func subtractTimes(s *rowScratch, t, p []float32, c float64) {
	p = p[:len(t)]
	done := 0
	if k := vectorKernelsOf(active); k != nil {
		s.c[0] = c
		for n := 0; done < len(t)&^15; done += n {
			n = min(rowAtOnce, len(t)&^15-done)
			k.subtract(&t[done], &p[done], &s.c[0], n)
		}
	}
	for i, v := range p[done:] {
		t[done+i] = float32(math.FMA(-c, float64(v), float64(t[done+i])))
	}
}

// rowsOf is the kernel that reads rows of a dtype, nil if there is none.
func (k *vectorKernels) rowsOf(d tensor.DType) func(to *float32, from unsafe.Pointer, stride, rows, n int) {
	if k == nil {
		return nil
	}
	switch d {
	case tensor.BFloat16:
		return k.widenBF16
	case tensor.Float16:
		return k.widenF16
	case tensor.Float32:
		return k.widenF32
	}
	return nil
}

// loadRows reads n rows of width elements one behind another, as load does; rows
// begin stride elements apart in b, and elements of a row lie inner apart.
func loadRows[F real](dst []F, b []byte, d tensor.DType, at, stride, inner, n, width int) {
	to, k := vectorsFor(dst)
	if run := k.rowsOf(d); run != nil && inner == 1 && width > 0 && width%16 == 0 {
		for i, most := 0, max(1, rowAtOnce/width); i < n; i += most {
			run(&to[i*width], unsafe.Pointer(&b[(at+i*stride)*d.Size()]), stride*d.Size(), min(most, n-i), width)
		}
		return
	}
	for i := range n {
		load(dst[i*width:(i+1)*width], b, d, at+i*stride, inner)
	}
}

// storeRows stores n rows of width elements, ld apart in src, as store does; in b
// rows begin stride elements apart, and elements of a row lie inner apart.
func storeRows[F real](b []byte, d tensor.DType, at, stride, inner, n, width int, src []F, ld int) {
	done := 0 // columns
	if from, k := vectorsFor(src); k != nil && inner == 1 && d.Size() == 2 && n > 0 && width >= 32 {
		run := k.narrowF16
		if d == tensor.BFloat16 {
			run = k.narrowBF16
		}
		done = width &^ 31
		for j, wide := 0, 0; j < done; j += wide {
			wide = min(rowAtOnce, done-j)
			for i, most := 0, max(1, rowAtOnce/wide); i < n; i += most {
				run(unsafe.Pointer(&b[(at+i*stride+j)*2]), stride*2, &from[i*ld+j], ld, min(most, n-i), wide)
			}
		}
		if done == width {
			return
		}
	}
	for i := range n {
		store(b, d, at+i*stride+done*inner, inner, src[i*ld+done:][:width-done])
	}
}
