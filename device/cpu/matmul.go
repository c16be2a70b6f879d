package cpu

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// The canonical order of a matrix product: element (i,j) is the sum, in order,
// of block sums over kBlock values of k; a block sum runs over k in order in one
// accumulator from 0, by fused multiply-adds. Every tier and every cut of the
// work keeps it, so a row has the same bits alone and among others.
const (
	kBlock   = 384 // values of k in a block sum
	colBlock = 256 // columns that are taken together: their panels of b stay in the second-level cache
	rowBlock = 48  // rows between two looks at the context

	// chunkWork is how many multiply-adds make a chunk of work at least: large
	// against handing it over.
	chunkWork = 1 << 20

	// packFirst is the number of rows from which b is packed as a whole before
	// the product, by all threads, and not by each chunk for itself.
	packFirst = 192

	// heldDepth is the largest k for which a chunk holds what it has packed of a.
	heldDepth = 8192

	// fairShare is how many chunks a thread should have, so that none waits long
	// for the last.
	fairShare = 6
)

// tileKernel computes tiles of a fixed number of columns and some rows.
type tileKernel[F real] struct {
	cols int
	rows []rowKernel[F] // the most rows first, one row last
	// transpose writes 16 rows of from, 16n elements each, as rows of 16; copy
	// copies n rows of 16m elements, m being 1 or 2. Both may be nil.
	transpose func(to *F, stride int, from *F, ld, n int)
	copy      func(to *F, stride int, from *F, ld, n, m int)
	// pairs makes n rows of 16m words of two bfloat16 each; where it is not nil,
	// elements of a and b are such words, of neighbours along k.
	pairs func(to *F, stride int, from *uint16, ld, n, m int)
}

// rowKernel adds to a tile of c, whose rows are ldc elements apart, the product
// of rows of a and columns of b, for k >= 1; without add, c is taken for zeros.
// Element (i,k) of a is at a + i*ars + k*acs; the columns for each k begin at
// b + k*bks. With half it takes the first half of the columns; that may be nil.
type rowKernel[F real] struct {
	rows      int
	run, half func(c *F, ldc int, a *F, ars, acs int, b *F, bks, k int, add bool)
}

// of is the kernel for so many columns, and how many it takes of them.
func (k *rowKernel[F]) of(columns, tile int) (run func(c *F, ldc int, a *F, ars, acs int, b *F, bks, k int, add bool), takes int) {
	if k.half != nil && columns <= tile/2 {
		return k.half, tile / 2
	}
	return k.run, tile
}

// The tiles in Go.
var (
	portable32 = tileKernel[float32]{cols: 4, rows: []rowKernel[float32]{{1, gemmPortable32, nil}}}
	portable64 = tileKernel[float64]{cols: 4, rows: []rowKernel[float64]{{1, gemmPortable64, nil}}}
)

var _ device.MatMulBias = (*Device)(nil)

// MatMul is out (...,M,N) = a (...,M,K) times b (...,K,N). Beside them it needs
// memory for a copy of b.
func (d *Device) MatMul(ctx context.Context, out, a, b *tensor.Tensor) error {
	if err := device.CheckMatMul(d.Name(), out, a, b); err != nil {
		return err
	}
	return d.matMul(ctx, out, a, b, nil)
}

// MatMulBias is MatMul with bias added to each row.
func (d *Device) MatMulBias(ctx context.Context, out, a, b, bias *tensor.Tensor) error {
	if err := device.CheckMatMulBias(d.Name(), out, a, b, bias); err != nil {
		return err
	}
	return d.matMul(ctx, out, a, b, bias)
}

func (d *Device) matMul(ctx context.Context, out, a, b, bias *tensor.Tensor) error {
	if ctx == nil {
		ctx = context.Background()
	}
	var err error
	switch {
	case out.Len() == 0:
		err = ctx.Err()
	case isWide64(out, a, b):
		err = matMul(ctx, d, out, a, b, bias, &gemms64, tile64(active))
	default:
		tile := tile32(active)
		// A row, or a column, times a matrix is bound by reading that, and stays exact.
		many := out.Dim(-2) > 1 && out.Dim(-1) > 1
		if d != nil && d.fast && many && a.DType() == tensor.BFloat16 && b.DType() == tensor.BFloat16 {
			if fast, ok := tileBF16(active); ok {
				tile = fast
			}
		}
		err = matMul(ctx, d, out, a, b, bias, &gemms32, tile)
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
	ctx       context.Context // ends it between blocks
	tile      tileKernel[F]
	out, a, b matrix
	k, n      int
	values    int // of k, where k counts words of two
	packed    []F // all panels of b, or nil
	bias      []F // of each column, or of each row where the product is transposed; or nil
	flip      bool

	pa, pb []F // panels: of some rows of a, of a block's columns of b
	held   []F // of all rows of a block
	sum    []F // sums of a block, where the result is not F itself
	edge   []F // a tile that is cut off
	x      []F // sixteen rows
	row    []F // a row of a
}

var (
	gemms32 = sync.Pool{New: func() any { return newGemm[float32]() }}
	gemms64 = sync.Pool{New: func() any { return newGemm[float64]() }}
)

// maxTile is at least the rows and columns of every tile.
const maxTile = 32

func newGemm[F real]() *gemm[F] {
	return &gemm[F]{pa: make([]F, 16*kBlock), pb: make([]F, (colBlock+maxTile)*kBlock), edge: make([]F, maxTile*maxTile), x: make([]F, 16*kBlock)}
}

// productCall is one call of MatMul.
type productCall[F real] struct {
	ctx           context.Context
	gemms         *sync.Pool
	tile          tileKernel[F]
	out, a, b     *tensor.Tensor // a and b exchanged where the product is transposed
	om, am, bm    matrix
	bias          []F
	packed        []F // all panels of b, or nil
	flip          bool
	batch         int
	m, k, n       int
	values        int // of k, where k counts words of two
	packing       bool
	span, height  int // columns and rows of a part of a product
	parts         int // of one
	group, blocks int // parts of a chunk; blocks of k
}

var (
	productCalls32 = sync.Pool{New: func() any { return new(productCall[float32]) }}
	productCalls64 = sync.Pool{New: func() any { return new(productCall[float64]) }}
)

func matMul[F real](ctx context.Context, d *Device, out, a, b, bias *tensor.Tensor, gemms *sync.Pool, tile tileKernel[F]) error {
	calls := &productCalls32
	if dtypeOf[F]() == tensor.Float64 {
		calls = &productCalls64
	}
	c := calls.Get().(*productCall[F])
	defer calls.Put(c)
	*c = productCall[F]{ctx: ctx, gemms: gemms, tile: tile, out: out, a: a, b: b, bias: c.bias}
	err := c.multiply(d, bias)
	*c = productCall[F]{bias: c.bias[:0]} // memory for the next
	return err
}

func (c *productCall[F]) multiply(d *Device, bias *tensor.Tensor) (err error) {
	if c.om, err = matrixOf(c.out); err != nil {
		return err
	}
	if c.am, err = matrixOf(c.a); err != nil {
		return err
	}
	if c.bm, err = matrixOf(c.b); err != nil {
		return err
	}
	if bias != nil {
		from, err := operandOf(bias)
		if err != nil {
			return err
		}
		load(grown(&c.bias, bias.Dim(0)), from.bytes, from.dtype, from.offset, bias.Strides()[0])
	}
	m, k, n := c.out.Dim(-2), c.a.Dim(-1), c.out.Dim(-1)
	c.values = k
	if c.tile.pairs != nil {
		k = (k + 1) / 2 // words
	}
	c.batch = c.out.Len() / (m * n)
	// The transposed product has the same sums. Tiles are wide: it serves results
	// of few columns, whose tiles would be empty for the most part.
	if c.flip = n < c.tile.cols && m > n; c.flip {
		c.om, c.am, c.bm = c.om.transposed(), c.bm.transposed(), c.am.transposed()
		c.a, c.b = c.b, c.a
		m, n = n, m
	}
	c.m, c.k, c.n = m, k, n
	if c.batch == 1 && m >= packFirst && n >= c.tile.cols && k > 0 {
		var z F
		if mem, err := d.Alloc(roundUp(n, c.tile.cols) * k * int(unsafe.Sizeof(z))); err == nil { // else there is no room for it
			defer d.Free(mem)
			c.packed = elems[F](mem.(*tensor.Host).Bytes())
		}
	}
	if c.packed != nil {
		c.packing, c.blocks = true, (k+kBlock-1)/kBlock
		err := d.run(c.ctx, (n+colBlock-1)/colBlock*c.blocks, c)
		if err != nil {
			return err
		}
		c.packing = false
	}
	// A chunk is some columns and some rows of one product, or several small
	// products. Where b is packed, it is all columns if there are rows enough:
	// then a is packed once.
	span := min(n, colBlock) // columns
	if m == 1 {              // whose rows of b are read where they lie, the longer the better
		span = min(n, max(colBlock, roundUp(n/(2*d.threadCount()), 64)), gemvSpan)
	}
	height := m
	if c.packed != nil {
		cols := (n + colBlock - 1) / colBlock
		if want := fairShare * d.threadCount(); k <= heldDepth {
			parts := min(cols, (want*rowBlock+m-1)/m)
			span = min(n, (cols+parts-1)/parts*colBlock)
		}
		height = roundUp(max(rowBlock, chunkWork/(span*k)), rowBlock)
	} else if threads := d.threadCount(); c.batch < 4*threads { // else there are chunks enough
		height = max(16, chunkWork/(span*max(k, 1))+1, (m+2*threads-1)/(2*threads))
	}
	c.span, c.height = span, min(m, height)
	c.parts = (m + c.height - 1) / c.height * ((n + span - 1) / span)
	c.group = 1
	if c.parts == 1 {
		c.group = max(1, chunkWork/(m*n*max(k, 1)))
	}
	return d.run(c.ctx, (c.batch*c.parts+c.group-1)/c.group, c)
}

func (c *productCall[F]) chunk(chunk int) {
	p := c.gemms.Get().(*gemm[F])
	defer c.gemms.Put(p)
	p.ctx, p.tile, p.k, p.n, p.values = c.ctx, c.tile, c.k, c.n, c.values
	if c.packing {
		cols := (c.n + colBlock - 1) / colBlock
		j, k0 := chunk%cols*colBlock, chunk/cols*kBlock
		kn := min(kBlock, c.k-k0)
		p.b = c.bm
		p.packB(p.panels(c.packed, j, k0, kn), j, min(j+colBlock, c.n), k0, kn)
		return
	}
	p.packed, p.flip = c.packed, c.flip
	if p.bias = c.bias; len(p.bias) == 0 {
		p.bias = nil
	}
	cols := (c.n + c.span - 1) / c.span
	for i := chunk * c.group; i < min((chunk+1)*c.group, c.batch*c.parts); i++ {
		e, part := i/c.parts, i%c.parts
		p.out, p.a, p.b = c.om.entry(c.out, e), c.am.entry(c.a, e), c.bm.entry(c.b, e)
		i0, j0 := part/cols*c.height, part%cols*c.span
		p.block(i0, min(i0+c.height, c.m), j0, min(j0+c.span, c.n))
	}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// panels is where the panels from column j on, of kn values from k0 on, are in
// all of b's.
func (p *gemm[F]) panels(packed []F, j, k0, kn int) []F {
	return packed[roundUp(p.n, p.tile.cols)*k0+j*kn:]
}

// block computes the rows i0..i1 and columns j0..j1 of the result. Where its
// columns are more than colBlock, what is packed of a is held for all of them.
func (p *gemm[F]) block(i0, i1, j0, j1 int) {
	if i1-i0 == 1 {
		if j0 = p.vector(i0, j0, j1); j0 == j1 {
			return
		}
	}
	hold := j1-j0 > colBlock && p.k > 0
	if need := roundUp(i1-i0, 16) * p.k; hold && cap(p.held) < need {
		p.held = make([]F, need)
	}
	for j := j0; j < j1; j += colBlock {
		p.columns(i0, i1, j, min(j+colBlock, j1), hold, j == j0)
	}
}

// columns computes at most colBlock columns of the rows. With hold, panels of a
// are in p.held, or are put there.
func (p *gemm[F]) columns(i0, i1, j0, j1 int, hold, first bool) {
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
	if p.k == 0 {
		for i := range i1 - i0 {
			clear(c[i*ldc:][:j1-j0])
		}
		p.finish(c, ldc, i0, i1, j0, j1, direct)
		return
	}
	// Columns of b that lie side by side need no packing for few rows.
	inPlace := p.packed == nil && p.tile.pairs == nil && p.b.dtype == dtypeOf[F]() && p.b.col == 1 && i1-i0 < 16
	for k0 := 0; k0 < p.k && p.ctx.Err() == nil; k0 += kBlock {
		kn := min(kBlock, p.k-k0)
		whole := 0 // columns whose b is read where it lies
		if inPlace {
			whole = (j1 - j0) / p.tile.cols * p.tile.cols
		}
		panels := p.pb
		if p.packed != nil {
			panels = p.panels(p.packed, j0, k0, kn)
		} else {
			p.packB(panels, j0+whole, j1, k0, kn)
		}
		for i := i0; i < i1 && p.ctx.Err() == nil; i += rowBlock {
			end := min(i+rowBlock, i1)
			var held []F
			if hold {
				held = p.held[roundUp(i1-i0, 16)*k0+(i-i0)*kn:]
			}
			to := c[(i-i0)*ldc:]
			if whole > 0 {
				b := elems[F](p.b.bytes)[p.b.at+k0*p.b.row+j0:]
				p.tiles(to, ldc, i, end, whole, k0, kn, b, p.tile.cols, p.b.row, nil, true)
			}
			if j0+whole < j1 {
				p.tiles(to[whole:], ldc, i, end, j1-j0-whole, k0, kn, panels, p.tile.cols*kn, p.tile.cols, held, first)
			}
			if k0+kn == p.k {
				p.finish(to, ldc, i, end, j0, j1, direct)
			}
		}
	}
}

// finish adds the bias to sums that are complete and stores them where they are
// not in the result itself.
func (p *gemm[F]) finish(c []F, ldc, i0, i1, j0, j1 int, direct bool) {
	for i := i0; i < i1 && p.bias != nil; i++ {
		row := c[(i-i0)*ldc:][:j1-j0]
		if !p.flip {
			addTo(row, p.bias[j0:j1])
			continue
		}
		for j := range row {
			row[j] += p.bias[i]
		}
	}
	if !direct {
		storeRows(p.out.bytes, p.out.dtype, p.out.at+i0*p.out.row+j0*p.out.col, p.out.row, p.out.col, i1-i0, j1-j0, c, ldc)
	}
}

// tiles computes the block sums over k0..k0+kn of rows i0..i1, at most rowBlock,
// and adds them to c, which begins at their first element, unless they are the
// first. The columns of b are in panels of a tile's width. The rows of a are in
// held, where there is room for them, once pack has put them there.
func (p *gemm[F]) tiles(c []F, ldc int, i0, i1, width, k0, kn int, b []F, panel, bks int, held []F, pack bool) {
	nr := p.tile.cols
	// A few rows whose elements lie one behind another are read where they are.
	var a []F
	direct := p.a.dtype == dtypeOf[F]() && p.tile.pairs == nil && p.a.col == 1 && i1-i0 < 16
	if direct {
		a = elems[F](p.a.bytes)[p.a.at+k0:]
	}
	add := k0 > 0
	kernel := p.tile.rows
	for i := i0; i < i1; {
		for kernel[0].rows > i1-i {
			kernel = kernel[1:]
		}
		mr := kernel[0].rows
		group := mr // rows that are packed side by side, sixteen where there are
		if mr == 8 && i1-i >= 16 {
			group = 16
		}
		pa := p.pa
		if held != nil {
			pa = held[(i-i0)*kn:]
		}
		if pack && !direct {
			p.pack(pa[:group*kn], group, p.a, i, i1, k0, kn)
		}
		for part := 0; part < group; part += mr {
			from, ars, acs := &pa[part], 1, group
			if direct {
				from, ars, acs = &a[i*p.a.row], p.a.row, 1
			}
			to := c[(i-i0)*ldc:]
			for j := 0; j < width; j += nr {
				run, cols := kernel[0].of(width-j, nr)
				if j+cols <= width {
					run(&to[j], ldc, from, ars, acs, &b[j/nr*panel], bks, kn, add)
					continue
				}
				edge := p.edge[:mr*nr]
				run(&edge[0], nr, from, ars, acs, &b[j/nr*panel], bks, kn, false)
				for r := range mr {
					row, sums := to[r*ldc+j:][:width-j], edge[r*nr:]
					if !add {
						copy(row, sums)
						continue
					}
					for q, x := range sums[:len(row)] {
						row[q] += x
					}
				}
			}
			i += mr
		}
	}
}

// packB packs columns j0..j1 of b in panels of a tile's columns.
func (p *gemm[F]) packB(panels []F, j0, j1, k0, kn int) {
	nr := p.tile.cols
	b := p.b.transposed() // its rows are b's columns
	for j := j0; j < j1; j += nr {
		p.pack(panels[(j-j0)*kn:][:nr*kn], nr, b, j, j1, k0, kn)
	}
}

// pack writes rows i..i+width-1 of m, n columns from k0 on, side by side: for
// each column, width numbers. Rows from end on are zeros.
func (p *gemm[F]) pack(panel []F, width int, m matrix, i, end, k0, n int) {
	have := min(width, end-i)
	if p.tile.pairs != nil {
		p.packPairs(panel, width, m, i, have, k0, n)
		return
	}
	same := m.dtype == dtypeOf[F]()
	if m.row == 1 { // columns of m are contiguous
		at := m.at + i + k0*m.col
		if same && have == width && width%16 == 0 && p.tile.copy != nil {
			p.tile.copy(&panel[0], width, &elems[F](m.bytes)[at], m.col, n, width/16)
			return
		}
		if have == width {
			loadRows(panel, m.bytes, m.dtype, at, m.col, 1, n, width)
			return
		}
		for k := range n {
			to := panel[k*width : (k+1)*width]
			load(to[:have], m.bytes, m.dtype, at+k*m.col, 1)
			clear(to[have:])
		}
		return
	}
	r := 0
	for ; r < have; r += min(16, have-r) {
		rows := min(16, have-r)
		var from []F // rows of n numbers, ld apart
		ld := n
		if same && m.col == 1 {
			from, ld = elems[F](m.bytes)[m.at+(i+r)*m.row+k0:], m.row
		} else {
			from = p.x
			for q := range rows {
				load(p.x[q*n:][:n], m.bytes, m.dtype, m.at+(i+r+q)*m.row+k0*m.col, m.col)
			}
		}
		k := 0
		if blocks := n / 16; rows == 16 && p.tile.transpose != nil && blocks > 0 {
			p.tile.transpose(&panel[r], width, &from[0], ld, blocks)
			k = 16 * blocks
		}
		for q := range rows {
			to := panel[r+q:]
			for k := k; k < n; k++ {
				to[k*width] = from[q*ld+k]
			}
		}
	}
	for ; r < width; r++ {
		for k := range n {
			panel[k*width+r] = 0
		}
	}
}

// packPairs is pack for words of two bfloat16 that are neighbours along k: n
// words from k0 on; of an odd number of values the last has a zero.
func (p *gemm[F]) packPairs(panel []F, width int, m matrix, i, have, k0, n int) {
	words, from := elems[uint32](bytesAs(panel)), elems[uint16](m.bytes)
	at := m.at + i*m.row + 2*k0*m.col
	whole := min(n, p.values/2-k0) // words with two values
	done := 0                      // of them, for all rows
	switch {
	case m.row == 1 && have == width && width%16 == 0 && whole > 0:
		p.tile.pairs(&panel[0], width, &from[at], m.col, whole, width/16)
		done = whole
	case m.col == 1 && m.row%2 == 0 && at%2 == 0 && have == width && width%16 == 0 && whole >= 16:
		done = whole &^ 15
		for r := 0; r < width; r += 16 {
			p.tile.transpose(&panel[r], width, &elems[F](m.bytes)[(at+r*m.row)/2], m.row/2, done/16)
		}
	}
	for r := range width {
		for k := done; k < n; k++ {
			var w uint32
			if x := at + r*m.row + 2*k*m.col; r < have {
				w = uint32(from[x])
				if k < whole {
					w |= uint32(from[x+m.col]) << 16
				}
			}
			words[k*width+r] = w
		}
	}
}

// gemmPortable64 is a tile of one row and four columns in Go.
func gemmPortable64(c *float64, _ int, a *float64, _, acs int, b *float64, bks, k int, add bool) {
	x, bv, to := at(a, (k-1)*acs+1), at(b, (k-1)*bks+4), at(c, 4)
	var s0, s1, s2, s3 float64
	for q := range k {
		y := bv[q*bks : q*bks+4]
		v := x[q*acs]
		s0, s1, s2, s3 = math.FMA(v, y[0], s0), math.FMA(v, y[1], s1), math.FMA(v, y[2], s2), math.FMA(v, y[3], s3)
	}
	if !add {
		clear(to)
	}
	to[0] += s0
	to[1] += s1
	to[2] += s2
	to[3] += s3
}
