package cpu

import "unsafe"

// gemvKernels are products of a row of float32 with a matrix of some dtype that
// is read once, where it lies, with sums along k in order. n counts sums and is
// a multiple of 16; rows of b begin stride bytes apart.
type gemvKernels struct {
	// sum += x[0] b[0] + x[1] b[1] ... over 8 rows, or 1, one after another.
	rows8, row1 func(sum, x *float32, b unsafe.Pointer, stride, n int)
	// sum[j] += x . b[j], k being a multiple of 16 numbers, of 32 in 16-bit
	// formats; nil where there is none.
	dots func(sum, x *float32, b unsafe.Pointer, stride, k, n int)
}

const (
	// gemvSpan is the most columns of a product of one row that a chunk has: their
	// sums stay in the first cache.
	gemvSpan = 4096

	// gemvTogether is how many rows' products with x are summed together.
	gemvTogether = 32
)

// vector computes columns from j0 on of row i, as many as kernels take of b
// where it lies, and gives where they end.
func (p *gemm[F]) vector(i, j0, j1 int) int {
	q, ok := any(p).(*gemm[float32])
	if !ok || p.tile.pairs != nil || p.k == 0 {
		return j0
	}
	k := gemvKernelsOf(active, p.b.dtype)
	end := j0 + (j1-j0)&^15
	switch {
	case k == nil || end == j0:
		return j0
	case p.b.col == 1:
		q.rowVector(i)
		alongRows(q, k, i, j0, end)
	case p.b.row == 1 && k.dots != nil && p.k%(64/p.b.dtype.Size()) == 0:
		q.rowVector(i)
		for j := j0; j < end; j += gemvTogether {
			alongColumns(q, k, i, j, min(j+gemvTogether, end))
		}
	default:
		return j0
	}
	return end
}

// rowVector puts row i of a in p.row.
func (p *gemm[F]) rowVector(i int) {
	load(grown(&p.row, p.k), p.a.bytes, p.a.dtype, p.a.at+i*p.a.row, p.a.col)
}

// sums are those of so many columns, all, which are zeros, and those of a block.
func (p *gemm[F]) sums(n int) (c, block []F) {
	if cap(p.sum) < 2*n {
		p.sum = make([]F, 2*n)
	}
	c, block = p.sum[:n], p.sum[n:2*n]
	clear(c)
	return c, block
}

// alongRows computes columns of row i where rows of b lie one element after another.
func alongRows(p *gemm[float32], k *gemvKernels, i, j0, j1 int) {
	n, size := j1-j0, p.b.dtype.Size()
	c, block := p.sums(n)
	for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
		clear(block)
		for r, end := k0, min(k0+kBlock, p.k); r < end; {
			run, rows := k.row1, 1
			if end-r >= 8 {
				run, rows = k.rows8, 8
			}
			run(&block[0], &p.row[r], unsafe.Pointer(&p.b.bytes[(p.b.at+r*p.b.row+j0)*size]), p.b.row*size, n)
			r += rows
		}
		addTo(c, block)
	}
	p.finish(c, n, i, i+1, j0, j1, false)
}

// alongColumns computes columns of row i where columns of b lie so.
func alongColumns(p *gemm[float32], k *gemvKernels, i, j0, j1 int) {
	n, size := j1-j0, p.b.dtype.Size()
	c, block := p.sums(n)
	for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
		clear(block)
		k.dots(&block[0], &p.row[k0], unsafe.Pointer(&p.b.bytes[(p.b.at+k0+j0*p.b.col)*size]), p.b.col*size, min(kBlock, p.k-k0), n)
		addTo(c, block)
	}
	p.finish(c, n, i, i+1, j0, j1, false)
}
