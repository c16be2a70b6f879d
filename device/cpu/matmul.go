package cpu

import (
	"context"
	"math"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// The canonical order of a matrix product: element (i,j) is the sum, in order,
// of block sums over kBlock values of k; a block sum runs over k in order in one
// accumulator from 0, by fused multiply-adds. Every tier and every cut of the
// work keeps it, so a row has the same bits alone and among others.
const (
	kBlock    = 384  // values of k in a block sum
	colBlock  = 256  // columns whose panel of b is packed together: it stays in the second-level cache
	rowBlock  = 96   // rows between two looks at the context
	maxHeight = 1024 // rows of a chunk

	// chunkWork is how many multiply-adds make a chunk of work at least: large
	// against handing it over, and against packing b once more.
	chunkWork = 1 << 20
)

// tileKernel computes tiles of a fixed number of columns and some rows.
type tileKernel[F real] struct {
	cols int
	rows []rowKernel[F] // the most rows first, one row last
	// transpose writes 16 rows of from, 16n elements each, as rows of 16; may be nil.
	transpose func(to *F, stride int, from *F, ld, n int)
}

// rowKernel adds to a tile of c, whose rows are ldc elements apart, the product
// of rows of a and columns of b, for k >= 1. Element (i,k) of a is at
// a + i*ars + k*acs; the columns for each k begin at b + k*bks.
type rowKernel[F real] struct {
	rows int
	run  func(c *F, ldc int, a *F, ars, acs int, b *F, bks, k int)
}

// The tiles in Go.
var (
	portable32 = tileKernel[float32]{cols: 4, rows: []rowKernel[float32]{{1, gemmPortable32}}}
	portable64 = tileKernel[float64]{cols: 4, rows: []rowKernel[float64]{{1, gemmPortable64}}}
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
		err = matMul(ctx, d, out, a, b, &gemms64, tile64(active))
	default:
		err = matMul(ctx, d, out, a, b, &gemms32, tile32(active))
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
	tile      tileKernel[F]
	out, a, b matrix
	k         int

	pa, pb []F // panels: of a tile's rows of a, of a block's columns of b
	sum    []F // sums of a block, where the result is not F itself
	edge   []F // a tile that is cut off
	x      []F // a row
}

var (
	gemms32 = sync.Pool{New: func() any { return newGemm[float32]() }}
	gemms64 = sync.Pool{New: func() any { return newGemm[float64]() }}
)

// maxTile is at least the rows and columns of every tile.
const maxTile = 32

func newGemm[F real]() *gemm[F] {
	return &gemm[F]{pa: make([]F, maxTile*kBlock), pb: make([]F, (colBlock+maxTile)*kBlock), edge: make([]F, maxTile*maxTile), x: make([]F, max(kBlock, colBlock))}
}

func matMul[F real](ctx context.Context, d *Device, out, a, b *tensor.Tensor, pool *sync.Pool, tile tileKernel[F]) error {
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
	// The transposed product has the same sums. Tiles are wide: it serves results
	// of few columns, whose tiles would be empty for the most part.
	flip := n < tile.cols && m > n
	if flip {
		om, am, bm = om.transposed(), bm.transposed(), am.transposed()
		a, b = b, a
		m, n = n, m
	}
	// A chunk is a block of columns and some rows of one product, or several
	// small products.
	width := min(n, colBlock)
	height := min(m, maxHeight, max(rowBlock, chunkWork/(width*max(k, 1))+1, (m+7)/8))
	rows, cols := (m+height-1)/height, (n+colBlock-1)/colBlock
	parts := rows * cols
	group := 1
	if parts == 1 {
		group = max(1, chunkWork/(m*n*max(k, 1)))
	}
	chunks := (batch*parts + group - 1) / group
	return d.run(ctx, chunks, func(chunk int) {
		p := pool.Get().(*gemm[F])
		defer pool.Put(p)
		p.ctx, p.tile, p.k = ctx, tile, k
		for i := chunk * group; i < min((chunk+1)*group, batch*parts); i++ {
			e, part := i/parts, i%parts
			p.out, p.a, p.b = om.entry(out, e), am.entry(a, e), bm.entry(b, e)
			i0, j0 := part/cols*height, part%cols*colBlock
			p.block(i0, min(i0+height, m), j0, min(j0+colBlock, n))
		}
	})
}

// block computes the rows i0..i1, at most maxHeight, and columns j0..j1, at most
// colBlock, of the result.
func (p *gemm[F]) block(i0, i1, j0, j1 int) {
	// Sums stay in the result itself where it holds them.
	direct := p.out.dtype == dtypeOf[F]() && p.out.col == 1
	var c []F
	var ldc int
	if direct {
		c, ldc = elems[F](p.out.bytes)[p.out.at+i0*p.out.row+j0:], p.out.row
	} else {
		if need := (i1 - i0) * colBlock; cap(p.sum) < need {
			p.sum = make([]F, need)
		}
		c, ldc = p.sum[:(i1-i0)*colBlock], colBlock
	}
	for i := range i1 - i0 {
		clear(c[i*ldc:][:j1-j0])
	}
	// Columns of b that lie side by side need no packing for few rows.
	inPlace := p.b.dtype == dtypeOf[F]() && p.b.col == 1 && i1-i0 < 16
	for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
		kn := min(kBlock, p.k-k0)
		whole := 0 // columns whose b is read where it lies
		if inPlace {
			whole = (j1 - j0) / p.tile.cols * p.tile.cols
		}
		p.packB(j0+whole, j1, k0, kn)
		for i := i0; i < i1 && p.ctx.Err() == nil; i += rowBlock {
			end := min(i+rowBlock, i1)
			if whole > 0 {
				b := elems[F](p.b.bytes)[p.b.at+k0*p.b.row+j0:]
				p.tiles(c[(i-i0)*ldc:], ldc, i, end, whole, k0, kn, b, p.tile.cols, p.b.row)
			}
			if j0+whole < j1 {
				p.tiles(c[(i-i0)*ldc+whole:], ldc, i, end, j1-j0-whole, k0, kn, p.pb, p.tile.cols*kn, p.tile.cols)
			}
		}
	}
	for i := i0; i < i1 && !direct; i++ {
		store(p.out.bytes, p.out.dtype, p.out.at+i*p.out.row+j0*p.out.col, p.out.col, c[(i-i0)*ldc:][:j1-j0])
	}
}

// tiles adds the block sums over k0..k0+kn of rows i0..i1 to c, which begins at
// their first element. The columns of b are in panels of a tile's width.
func (p *gemm[F]) tiles(c []F, ldc int, i0, i1, width, k0, kn int, b []F, panel, bks int) {
	nr := p.tile.cols
	// Rows whose elements lie one behind another are read where they are.
	var a []F
	direct := p.a.dtype == dtypeOf[F]() && p.a.col == 1
	if direct {
		a = elems[F](p.a.bytes)[p.a.at+k0:]
	}
	kernel := p.tile.rows
	for i := i0; i < i1; {
		for kernel[0].rows > i1-i {
			kernel = kernel[1:]
		}
		mr, run := kernel[0].rows, kernel[0].run
		from, ars, acs := &p.pa[0], 1, mr
		if direct {
			from, ars, acs = &a[i*p.a.row], p.a.row, 1
		} else {
			p.pack(p.pa[:mr*kn], mr, p.a, i, i1, k0, kn)
		}
		for j := 0; j < width; j += nr {
			to := c[(i-i0)*ldc+j:]
			if j+nr <= width {
				run(&to[0], ldc, from, ars, acs, &b[j/nr*panel], bks, kn)
				continue
			}
			edge := p.edge[:mr*nr]
			clear(edge)
			run(&edge[0], nr, from, ars, acs, &b[j/nr*panel], bks, kn)
			for r := range mr {
				row := to[r*ldc:][:width-j]
				for q, x := range edge[r*nr:][:len(row)] {
					row[q] += x
				}
			}
		}
		i += mr
	}
}

// packB packs columns j0..j1 of b in panels of a tile's columns.
func (p *gemm[F]) packB(j0, j1, k0, kn int) {
	nr := p.tile.cols
	b := p.b.transposed() // its rows are b's columns
	for j := j0; j < j1; j += nr {
		p.pack(p.pb[(j-j0)*kn:][:nr*kn], nr, b, j, j1, k0, kn)
	}
}

// pack writes rows i..i+width-1 of m, n columns from k0 on, side by side: for
// each column, width numbers. Rows from end on are zeros.
func (p *gemm[F]) pack(panel []F, width int, m matrix, i, end, k0, n int) {
	have := min(width, end-i)
	same := m.dtype == dtypeOf[F]()
	if m.row == 1 { // columns of m are contiguous
		for k := range n {
			to := panel[k*width : (k+1)*width]
			from := m.at + i + (k0+k)*m.col
			if same {
				copy(to[:have], elems[F](m.bytes)[from:])
			} else {
				load(to[:have], m.bytes, m.dtype, from, 1)
			}
			clear(to[have:])
		}
		return
	}
	inPlace := same && m.col == 1
	done := 0 // rows that are transposed sixteen at a time, for the first columns
	if blocks := n / 16; inPlace && p.tile.transpose != nil && blocks > 0 {
		for ; done+16 <= have; done += 16 {
			p.tile.transpose(&panel[done], width, &elems[F](m.bytes)[m.at+(i+done)*m.row+k0*m.col], m.row, blocks)
		}
	}
	for r := range width {
		k := 0
		if r < done {
			k = n / 16 * 16
		}
		to := panel[r:]
		switch {
		case r >= have:
			for ; k < n; k++ {
				to[k*width] = 0
			}
		case inPlace:
			x := elems[F](m.bytes)[m.at+(i+r)*m.row+k0*m.col:][:n]
			for ; k < n; k++ {
				to[k*width] = x[k]
			}
		default:
			x := p.x[:n]
			load(x, m.bytes, m.dtype, m.at+(i+r)*m.row+k0*m.col, m.col)
			for k, v := range x {
				to[k*width] = v
			}
		}
	}
}

// gemmPortable64 is a tile of one row and four columns in Go.
func gemmPortable64(c *float64, _ int, a *float64, _, acs int, b *float64, bks, k int) {
	x, bv, to := at(a, (k-1)*acs+1), at(b, (k-1)*bks+4), at(c, 4)
	var s0, s1, s2, s3 float64
	for q := range k {
		y := bv[q*bks : q*bks+4]
		v := x[q*acs]
		s0, s1, s2, s3 = math.FMA(v, y[0], s0), math.FMA(v, y[1], s1), math.FMA(v, y[2], s2), math.FMA(v, y[3], s3)
	}
	to[0] += s0
	to[1] += s1
	to[2] += s2
	to[3] += s3
}
