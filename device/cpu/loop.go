package cpu

import (
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// grain is how many elements make a chunk of work: large against the cost of
// handing it to another goroutine, small enough to be cancelled between.
const grain = 16384

// maxOperands is how many tensors a kernel walks at the same time.
const maxOperands = 4

// loop walks up to maxOperands tensors of one shape together, in an order that
// suits their strides. The element at linear position i of the loop is the same
// element of the shape in each operand; the order is not that of the shape.
type loop struct {
	rank    int // at least 1 once it is made
	size    [tensor.MaxRank]int
	stride  [tensor.MaxRank][maxOperands]int // by axis, then operand
	n       int                              // operands
	operand [maxOperands]operand
	length  int
}

// operand is one tensor of a loop.
type operand struct {
	bytes  []byte
	dtype  tensor.DType
	offset int
}

// over makes a new loop one over tensors of equal shapes. The first decides the order.
func (l *loop) over(ts ...*tensor.Tensor) error {
	*l = loop{}
	for _, t := range ts {
		if err := l.add(t); err != nil {
			*l = loop{}
			return err
		}
	}
	for i, n := range ts[0].Shape() {
		var s [maxOperands]int
		for k, t := range ts {
			s[k] = t.Strides()[i]
		}
		l.axis(n, s)
	}
	l.sort()
	l.merge()
	l.lengthenRows()
	return nil
}

func (l *loop) add(t *tensor.Tensor) error {
	b, err := bytesOf(t)
	if err != nil {
		return err
	}
	l.operand[l.n] = operand{bytes: b, dtype: t.DType(), offset: t.Offset()}
	l.n++
	return nil
}

// axis adds an axis inside those there are; an axis of size 1 is none.
func (l *loop) axis(size int, stride [maxOperands]int) {
	if size == 1 {
		return
	}
	l.size[l.rank], l.stride[l.rank] = size, stride
	l.rank++
}

// sort puts the axes in descending order of the first operand's strides.
func (l *loop) sort() {
	for i := 1; i < l.rank; i++ {
		for j := i; j > 0 && l.stride[j-1][0] < l.stride[j][0]; j-- {
			l.swap(j-1, j)
		}
	}
}

func (l *loop) swap(i, j int) {
	l.size[i], l.size[j] = l.size[j], l.size[i]
	l.stride[i], l.stride[j] = l.stride[j], l.stride[i]
}

// merge makes one axis of neighbours that are one in every operand, and
// completes the loop.
func (l *loop) merge() {
	kept := 0
	for i := 1; i < l.rank; i++ {
		one := true
		for k := range l.n {
			one = one && l.stride[kept][k] == l.stride[i][k]*l.size[i]
		}
		if one {
			l.size[kept] *= l.size[i]
		} else {
			kept++
			l.size[kept] = l.size[i]
		}
		l.stride[kept] = l.stride[i]
	}
	if l.rank == 0 {
		l.size[0], l.stride[0] = 1, [maxOperands]int{}
	}
	l.rank = kept + 1
	l.length = 1
	for _, n := range l.size[:l.rank] {
		l.length *= n
	}
}

// lengthenRows puts the longest axis innermost if the innermost is so short
// that starting a row would cost more than its elements.
func (l *loop) lengthenRows() {
	in := l.rank - 1
	if l.size[in] >= 16 {
		return
	}
	best := in
	for i := range in {
		if l.size[i] > l.size[best] {
			best = i
		}
	}
	for ; best < in; best++ {
		l.swap(best, best+1)
	}
}

// inner is operand k's stride along the innermost axis.
func (l *loop) inner(k int) int { return l.stride[l.rank-1][k] }

// pointer is where element at of operand k lies.
func (l *loop) pointer(k, at int) unsafe.Pointer {
	o := &l.operand[k]
	return unsafe.Pointer(&o.bytes[at*o.dtype.Size()])
}

// chunks is how many chunks of grain elements the loop has.
func (l *loop) chunks() int { return (l.length + grain - 1) / grain }

// chunkAt starts a cursor over one chunk.
func (l *loop) chunkAt(i int) cursor { return l.from(i*grain, (i+1)*grain) }

// cursor is a place in a loop.
type cursor struct {
	loop  *loop
	left  int
	index [tensor.MaxRank]int
	at    [maxOperands]int
}

// from starts at linear position start; the cursor ends before end or at the end of the loop.
func (l *loop) from(start, end int) cursor {
	c := cursor{loop: l, left: min(end, l.length) - start}
	for k := range l.n {
		c.at[k] = l.operand[k].offset
	}
	if c.left <= 0 {
		return c
	}
	for i := l.rank - 1; i >= 0; i-- {
		c.index[i] = start % l.size[i]
		start /= l.size[i]
		for k := range l.n {
			c.at[k] += c.index[i] * l.stride[i][k]
		}
	}
	return c
}

// next gives the next run of elements along the innermost axis, at most limit,
// and where it begins in each operand. 0 elements are the end.
func (c *cursor) next(limit int) (n int, at [maxOperands]int) {
	l := c.loop
	i := l.rank - 1
	n = min(limit, l.size[i]-c.index[i], c.left)
	if n <= 0 {
		return 0, c.at
	}
	at = c.at
	c.left -= n
	step := n
	for {
		c.index[i] += step
		for k := range c.at {
			c.at[k] += step * l.stride[i][k]
		}
		if c.index[i] < l.size[i] || i == 0 {
			return n, at
		}
		for k := range c.at {
			c.at[k] -= l.size[i] * l.stride[i][k]
		}
		c.index[i] = 0
		i--
		step = 1
	}
}

// scratch is room for one tile of each operand.
type scratch [maxOperands][tile]uint64

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func tileOf[F real](s *scratch, i int) []F {
	return unsafe.Slice((*F)(unsafe.Pointer(&s[i])), tile)
}

// isWide64 reports whether arithmetic on the tensors is done in float64.
func isWide64(ts ...*tensor.Tensor) bool {
	for _, t := range ts {
		if t.DType() == tensor.Float64 {
			return true
		}
	}
	return false
}

// dtypeOf is the dtype that is F itself.
func dtypeOf[F real]() tensor.DType {
	var z F
	if unsafe.Sizeof(z) == 8 {
		return tensor.Float64
	}
	return tensor.Float32
}

// widened gives n elements as F: the memory itself if it holds them so, else buf.
func widened[F real](o *operand, buf []F, n, at, stride int) []F {
	if o.dtype == dtypeOf[F]() && (stride == 1 || n == 1) {
		return elems[F](o.bytes)[at : at+n]
	}
	load(buf[:n], o.bytes, o.dtype, at, stride)
	return buf[:n]
}
