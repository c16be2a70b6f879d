package cpu

import (
	"context"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// The canonical order of a matrix product: element (i,j) is the sum, in order,
// of block sums over kBlock values of k; a block sum runs over k in order in one
// accumulator from 0, a product and then an addition, not fused. Every path
// below keeps it, so a row has the same bits alone and among others.
const (
	kBlock   = 384 // values of k in a block sum
	rowBlock = 64  // rows of a chunk: a multiple of microRows
	colBlock = 128 // columns of a chunk: a multiple of microCols

	microRows = 4
	microCols = 2

	// chunkWork is how many multiply-adds of small products share a chunk.
	chunkWork = 1 << 17
)

// MatMul is out (...,M,N) = a (...,M,K) times b (...,K,N).
func (d *Device) MatMul(ctx context.Context, out, a, b *tensor.Tensor) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := device.CheckMatMul(d.Name(), out, a, b); err != nil {
		return err
	}
	var err error
	switch {
	case out.Len() == 0:
		err = ctx.Err()
	case out.DType() == tensor.Float64 || a.DType() == tensor.Float64 || b.DType() == tensor.Float64:
		err = matMul[float64](ctx, d, out, a, b, &gemms64)
	default:
		err = matMul[float32](ctx, d, out, a, b, &gemms32)
	}
	out.Memory().Written()
	return err
}

// matrix is a tensor whose last two axes are rows and columns.
type matrix struct {
	bytes    []byte
	dtype    tensor.DType
	at       int // of element (0,0)
	row, col int // strides
}

func matrixOf(t *tensor.Tensor) (matrix, error) {
	b, err := bytesOf(t)
	st := t.Strides()
	return matrix{bytes: b, dtype: t.DType(), at: t.Offset(), row: st[len(st)-2], col: st[len(st)-1]}, err
}

// entry is the matrix at index i of the leading axes.
func (m matrix) entry(t *tensor.Tensor, i int) matrix {
	for axis := t.Rank() - 3; axis >= 0; axis-- {
		n := t.Dim(axis)
		m.at += i % n * t.Strides()[axis]
		i /= n
	}
	return m
}

func (m matrix) transposed() matrix {
	m.row, m.col = m.col, m.row
	return m
}

// gemm is one worker's matrix product and its memory.
type gemm[F real] struct {
	ctx       context.Context // ends it between blocks of k
	out, a, b matrix
	m, k, n   int

	pa, pb   []F // panels of a and b
	sum      []F // rowBlock x colBlock, in rows
	x        []F // a row of a
	y        []F // rows or columns of b
	part, to []F // sums of one row
}

var (
	gemms32 = sync.Pool{New: func() any { return newGemm[float32]() }}
	gemms64 = sync.Pool{New: func() any { return newGemm[float64]() }}
)

func newGemm[F real]() *gemm[F] {
	return &gemm[F]{pa: make([]F, rowBlock*kBlock), pb: make([]F, colBlock*kBlock), sum: make([]F, rowBlock*colBlock),
		x: make([]F, kBlock), y: make([]F, 4*kBlock), part: make([]F, colBlock), to: make([]F, colBlock)}
}

func matMul[F real](ctx context.Context, d *Device, out, a, b *tensor.Tensor, pool *sync.Pool) error {
	om, err := matrixOf(out)
	if err != nil {
		return err
	}
	am, err := matrixOf(a)
	if err != nil {
		return err
	}
	bm, err := matrixOf(b)
	if err != nil {
		return err
	}
	m, k, n := out.Dim(-2), a.Dim(-1), out.Dim(-1)
	batch := out.Len() / (m * n)
	rows, cols := (m+rowBlock-1)/rowBlock, (n+colBlock-1)/colBlock
	parts := rows * cols
	// Small products share a chunk.
	group := 1
	if parts == 1 {
		group = max(1, chunkWork/(m*n*max(k, 1)))
	}
	chunks := (batch*parts + group - 1) / group
	return d.run(ctx, chunks, func(chunk int) {
		p := pool.Get().(*gemm[F])
		defer pool.Put(p)
		p.ctx = ctx
		p.m, p.k, p.n = m, k, n
		for i := chunk * group; i < min((chunk+1)*group, batch*parts); i++ {
			e, part := i/parts, i%parts
			p.out, p.a, p.b = om.entry(out, e), am.entry(a, e), bm.entry(b, e)
			i0, j0 := part/cols*rowBlock, part%cols*colBlock
			p.block(i0, min(i0+rowBlock, m), j0, min(j0+colBlock, n))
		}
	})
}

// block computes the rows i0..i1 and columns j0..j1 of the result.
func (p *gemm[F]) block(i0, i1, j0, j1 int) {
	switch {
	case i1-i0 < microRows || p.k < 8 && i1-i0 <= j1-j0:
		p.byRows(i0, i1, j0, j1)
	case j1-j0 < microCols || p.k < 8:
		// The transposed product has the same sums: products commute.
		t := *p
		t.out, t.a, t.b = p.out.transposed(), p.b.transposed(), p.a.transposed()
		t.m, t.n = p.n, p.m
		t.byRows(j0, j1, i0, i1)
	default:
		p.packed(i0, i1, j0, j1)
	}
}

// byRows computes row by row without panels: for few rows.
func (p *gemm[F]) byRows(i0, i1, j0, j1 int) {
	columns := p.b.col != 1 && p.b.row == 1 // b lies column by column
	w := j1 - j0
	for i := i0; i < i1; i++ {
		to, part := p.to[:w], p.part[:w]
		clear(to)
		for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
			kn := min(kBlock, p.k-k0)
			x := p.x[:kn]
			load(x, p.a.bytes, p.a.dtype, p.a.at+i*p.a.row+k0*p.a.col, p.a.col)
			if columns {
				p.dots(part, x, k0, j0)
			} else {
				clear(part)
				for k, c := range x {
					y := p.y[:w]
					load(y, p.b.bytes, p.b.dtype, p.b.at+(k0+k)*p.b.row+j0*p.b.col, p.b.col)
					part := part[:len(y)]
					for j, v := range y {
						part[j] += F(c * v)
					}
				}
			}
			for j, v := range part {
				to[j] += v
			}
		}
		store(p.out.bytes, p.out.dtype, p.out.at+i*p.out.row+j0*p.out.col, p.out.col, to)
	}
}

// dots sets part to the block sums of a row x with columns of b, four at a time
// so that the additions of one column need not wait for one another's.
func (p *gemm[F]) dots(part, x []F, k0, j0 int) {
	n := len(x)
	for j := 0; j < len(part); j += 4 {
		c := min(4, len(part)-j)
		for q := range 4 { // a column that is not there repeats the last
			load(p.y[q*n:(q+1)*n], p.b.bytes, p.b.dtype, p.b.at+k0*p.b.row+(j0+j+min(q, c-1))*p.b.col, p.b.row)
		}
		y0, y1, y2, y3 := p.y[:n], p.y[n:2*n], p.y[2*n:3*n], p.y[3*n:4*n]
		var s [4]F
		var s0, s1, s2, s3 F
		for k, v := range x {
			s0 += F(v * y0[k])
			s1 += F(v * y1[k])
			s2 += F(v * y2[k])
			s3 += F(v * y3[k])
		}
		s = [4]F{s0, s1, s2, s3}
		copy(part[j:j+c], s[:c])
	}
}

// packed widens a block of a and of b into panels and runs the micro-kernel over them.
func (p *gemm[F]) packed(i0, i1, j0, j1 int) {
	mPanels := (i1 - i0 + microRows - 1) / microRows
	nPanels := (j1 - j0 + microCols - 1) / microCols
	clear(p.sum)
	for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
		kn := min(kBlock, p.k-k0)
		for r := range mPanels {
			pack(p.pa[r*microRows*kn:(r+1)*microRows*kn], microRows, p.x[:kn], p.a, i0+r*microRows, i1, k0)
		}
		b := p.b.transposed() // its rows are b's columns
		for c := range nPanels {
			pack(p.pb[c*microCols*kn:(c+1)*microCols*kn], microCols, p.x[:kn], b, j0+c*microCols, j1, k0)
		}
		for c := range nPanels {
			pb := p.pb[c*microCols*kn : (c+1)*microCols*kn]
			for r := range mPanels {
				micro(p.sum[r*microRows*colBlock+c*microCols:], p.pa[r*microRows*kn:(r+1)*microRows*kn], pb)
			}
		}
	}
	for i := i0; i < i1; i++ {
		store(p.out.bytes, p.out.dtype, p.out.at+i*p.out.row+j0*p.out.col, p.out.col, p.sum[(i-i0)*colBlock:(i-i0)*colBlock+j1-j0])
	}
}

// pack writes rows i..i+width-1 of m, columns k0 and on, side by side: for each
// column, width numbers. Rows from end on are zeros.
func pack[F real](panel []F, width int, row []F, m matrix, i, end, k0 int) {
	n := len(row)
	if m.row == 1 && i+width <= end { // columns of m are contiguous
		for k := range n {
			load(panel[k*width:(k+1)*width], m.bytes, m.dtype, m.at+i+(k0+k)*m.col, 1)
		}
		return
	}
	for r := range width {
		if i+r < end {
			load(row, m.bytes, m.dtype, m.at+(i+r)*m.row+k0*m.col, m.col)
		} else {
			clear(row)
		}
		for k, x := range row {
			panel[k*width+r] = x
		}
	}
}

// micro adds to a microRows x microCols corner of sum, whose rows are colBlock
// apart, the block sums of two panels.
func micro[F real](sum, a, b []F) {
	var c00, c01, c10, c11, c20, c21, c30, c31 F
	for len(a) >= microRows && len(b) >= microCols {
		b0, b1 := b[0], b[1]
		x := a[0]
		c00 += F(x * b0)
		c01 += F(x * b1)
		x = a[1]
		c10 += F(x * b0)
		c11 += F(x * b1)
		x = a[2]
		c20 += F(x * b0)
		c21 += F(x * b1)
		x = a[3]
		c30 += F(x * b0)
		c31 += F(x * b1)
		a, b = a[microRows:], b[microCols:]
	}
	sum[0] += c00
	sum[1] += c01
	sum[colBlock] += c10
	sum[colBlock+1] += c11
	sum[2*colBlock] += c20
	sum[2*colBlock+1] += c21
	sum[3*colBlock] += c30
	sum[3*colBlock+1] += c31
}
