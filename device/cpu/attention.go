package cpu

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/internal/memory"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.Attention = (*Device)(nil)

// Attention takes the query heads of one key head at a time, and of them
// queryBlock queries at a time against all keys they see: a worker needs memory
// for the keys and values of a head and for a block's logits. The products have
// the canonical order of MatMul over what the block sees; sums along a row have
// sixteen lanes in float64.
const queryBlock = 64

// attnHead is one worker's memory.
type attnHead[F real] struct {
	gemm           *gemm[F]
	k, v           []F // (S,W), (S,V)
	kt, vt, kp, vp []F // panels of k^T, v^T, k and v
	q, g, s, t, o  []F // of a block of queries
	qp, gp         []F // panels of a block
	dk, dv         []F
	inverse, lse   [queryBlock]float64
	row            rowScratch
}

var (
	attnHeads32 = sync.Pool{New: func() any { return &attnHead[float32]{gemm: newGemm[float32]()} }}
	attnHeads64 = sync.Pool{New: func() any { return &attnHead[float64]{gemm: newGemm[float64]()} }}
)

var (
	attnCalls32 = sync.Pool{New: func() any { return new(attnCall[float32]) }}
	attnCalls64 = sync.Pool{New: func() any { return new(attnCall[float64]) }}
)

func grown[F real](x *[]F, n int) []F {
	if cap(*x) < n {
		*x = make([]F, n)
	}
	*x = (*x)[:n]
	return *x
}

// attnCall is one call: what its heads share.
type attnCall[F real] struct {
	ctx              context.Context
	tile             tileKernel[F]
	rooms            *sync.Pool
	do               func(s *attnHead[F], c *attnCall[F], b, g int)
	q, k, v          heads
	out, lse         heads
	grad, dq, dk, dv heads
	group            int // query heads to a key head
	keyHeads         int
	queries, keys    int
	width, values    int
	scale            float64
	causal           bool
}

// heads is a (B,H,T,W) tensor, or (B,H,T).
type heads struct {
	operand
	there  bool
	stride [4]int
}

func headsOf(t *tensor.Tensor) (heads, error) {
	if t == nil {
		return heads{}, nil
	}
	o, err := operandOf(t)
	h := heads{operand: o, there: true}
	copy(h.stride[:], t.Strides())
	return h, err
}

func (h *heads) at(b, head, row int) int {
	return h.offset + b*h.stride[0] + head*h.stride[1] + row*h.stride[2]
}

// What is done with a head, made once.
var (
	forward32, backward32 = (*attnHead[float32]).forward, (*attnHead[float32]).backward
	forward64, backward64 = (*attnHead[float64]).forward, (*attnHead[float64]).backward
)

// AttentionForward: out = softmax(scale q k^T) v.
func (d *Device) AttentionForward(ctx context.Context, a *device.AttentionArgs, out, lse *tensor.Tensor) error {
	if err := device.CheckAttention(d.Name(), a, out, lse); err != nil {
		return err
	}
	if out == nil {
		return &tensor.ArgError{Op: "attention", Arg: "out", Got: "nil", Want: "a tensor", Kind: tensor.ErrMissing}
	}
	var err error
	if a.Q.DType() == tensor.Float64 {
		err = attention(ctx, d, a, tile64(active), &attnHeads64, forward64, out, lse, nil, nil, nil, nil)
	} else {
		err = attention(ctx, d, a, tile32(active), &attnHeads32, forward32, out, lse, nil, nil, nil, nil)
	}
	written(out, lse)
	return err
}

// AttentionBackward, with p the weights: dv = p^T g, dp = g v^T,
// ds = scale p (dp - sum(p dp)), dq = ds k, dk = ds^T q.
func (d *Device) AttentionBackward(ctx context.Context, a *device.AttentionArgs, lse, gradOut, gradQ, gradK, gradV *tensor.Tensor) error {
	if err := device.CheckAttentionBackward(d.Name(), a, lse, gradOut, gradQ, gradK, gradV); err != nil {
		return err
	}
	var err error
	if a.Q.DType() == tensor.Float64 {
		err = attention(ctx, d, a, tile64(active), &attnHeads64, backward64, nil, lse, gradOut, gradQ, gradK, gradV)
	} else {
		err = attention(ctx, d, a, tile32(active), &attnHeads32, backward32, nil, lse, gradOut, gradQ, gradK, gradV)
	}
	written(gradQ, gradK, gradV)
	return err
}

func written(ts ...*tensor.Tensor) {
	for _, t := range ts {
		if t != nil {
			t.Memory().Written()
		}
	}
}

func attention[F real](ctx context.Context, d *Device, a *device.AttentionArgs, tile tileKernel[F], pool *sync.Pool,
	do func(s *attnHead[F], c *attnCall[F], b, g int), out, lse, grad, dq, dk, dv *tensor.Tensor) error {
	if ctx == nil {
		ctx = context.Background()
	}
	calls := &attnCalls32
	if dtypeOf[F]() == tensor.Float64 {
		calls = &attnCalls64
	}
	c := calls.Get().(*attnCall[F])
	defer func() {
		*c = attnCall[F]{}
		calls.Put(c)
	}()
	*c = attnCall[F]{ctx: ctx, tile: tile, rooms: pool, do: do, group: a.Q.Dim(1) / a.K.Dim(1), queries: a.Q.Dim(2), keys: a.K.Dim(2),
		width: a.Q.Dim(3), values: a.V.Dim(3), keyHeads: a.K.Dim(1), scale: a.Scale, causal: a.Causal}
	for _, x := range []struct {
		to *heads
		t  *tensor.Tensor
	}{{&c.q, a.Q}, {&c.k, a.K}, {&c.v, a.V}, {&c.out, out}, {&c.lse, lse}, {&c.grad, grad}, {&c.dq, dq}, {&c.dk, dk}, {&c.dv, dv}} {
		var err error
		if *x.to, err = headsOf(x.t); err != nil {
			return err
		}
	}
	if !memory.Fits(d.threadCount(), c.keys+maxTile, 3*(c.width+c.values)+2*queryBlock, 8) {
		return &tensor.ArgError{Op: "attention", Arg: "k", Got: a.K.Shape().String(), Want: "heads that fit the machine's memory", Kind: tensor.ErrSize}
	}
	return d.run(ctx, a.K.Dim(0)*a.K.Dim(1), c)
}

func (c *attnCall[F]) chunk(i int) {
	s := c.rooms.Get().(*attnHead[F])
	defer c.rooms.Put(s)
	s.gemm.tile = c.tile
	c.do(s, c, i/c.keyHeads, i%c.keyHeads)
}

// loadHead reads n rows of a head from one on, one behind another.
func loadHead[F real](dst []F, h *heads, b, head, row, n, width int) {
	loadRows(dst, h.bytes, h.dtype, h.at(b, head, row), h.stride[2], h.stride[3], n, width)
}

func storeHead[F real](h *heads, b, head, row, n, width int, src []F, ld int) {
	storeRows(h.bytes, h.dtype, h.at(b, head, row), h.stride[2], h.stride[3], n, width, src, ld)
}

// columns packs the n rows of x, each of k numbers, as the columns of an operand b.
func (s *attnHead[F]) columns(panels *[]F, x []F, n, k int) {
	nr := s.gemm.tile.cols
	to := grown(panels, roundUp(n, nr)*k)
	m := matrix{bytes: bytesAs(x), dtype: dtypeOf[F](), row: k, col: 1}
	for j := 0; j < n && k > 0; j += nr {
		s.gemm.pack(to[j*k:][:nr*k], nr, m, j, n, 0, k)
	}
}

// rowsOf packs the k rows of x, each of n numbers, as the rows of an operand b.
func (s *attnHead[F]) rowsOf(panels *[]F, x []F, k, n int) {
	nr := s.gemm.tile.cols
	to := grown(panels, roundUp(n, nr)*k)
	m := matrix{bytes: bytesAs(x), dtype: dtypeOf[F](), row: 1, col: n}
	for j := 0; j < n && k > 0; j += nr {
		s.gemm.pack(to[j*k:][:nr*k], nr, m, j, n, 0, k)
	}
}

func bytesAs[F real](x []F) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}

// product sets c to a (rows,k) times b, or adds it. The rows of c have room for
// whole tiles of columns; b is in panels of all its rows, of which there are deep.
func (s *attnHead[F]) product(c []F, ldc, rows, columns int, a []F, ars, acs int, b []F, deep, k int, add bool) {
	nr := s.gemm.tile.cols
	if k == 0 && !add {
		for r := range rows {
			clear(c[r*ldc:][:roundUp(columns, nr)])
		}
	}
	for k0 := 0; k0 < k; k0 += kBlock {
		kn := min(kBlock, k-k0)
		kernel := s.gemm.tile.rows
		for i := 0; i < rows; {
			for kernel[0].rows > rows-i {
				kernel = kernel[1:]
			}
			for j := 0; j < columns; j += nr {
				run, _ := kernel[0].of(columns-j, nr)
				run(&c[i*ldc+j], ldc, &a[i*ars+k0*acs], ars, acs, &b[j*deep+k0*nr], nr, kn, add || k0 > 0)
			}
			i += kernel[0].rows
		}
	}
}

// sees is how many keys query i sees.
func (c *attnCall[F]) sees(i int) int {
	if !c.causal {
		return c.keys
	}
	return min(max(i+1+c.keys-c.queries, 0), c.keys)
}

// logits fills s.s with q k^T for n queries from row i on, and gives how many
// keys the last of them sees.
func (s *attnHead[F]) logits(c *attnCall[F], b, head, i, n int) (seen, ld int) {
	seen = c.sees(i + n - 1)
	ld = roundUp(c.keys, s.gemm.tile.cols) + 16
	loadHead(grown(&s.q, n*c.width), &c.q, b, head, i, n, c.width)
	x := grown(&s.s, queryBlock*ld)
	s.product(x, ld, n, seen, s.q, c.width, 1, s.kt, c.width, c.width, false)
	return seen, ld
}

// exp sets x to exp(scale x - less) and gives their sum.
func (s *attnHead[F]) exp(x []F, scale, less float64) float64 {
	s.row.lanes = [16]float64{}
	switch x := any(x).(type) {
	case []float32:
		s.row.c = [2]float64{scale, less}
		expLanes(x, x, &s.row)
	case []float64:
		for i, v := range x {
			x[i] = elementary.Exp(float64(scale*v) - less)
			s.row.lanes[i%16] += x[i]
		}
	}
	return joinLanes(s.row.lanes[:])
}

// top is the largest of scale x that is a number.
func (s *attnHead[F]) top(x []F, scale float64) float64 {
	var best float64
	if scale < 0 {
		best = math.Inf(1)
		for _, v := range x {
			if float64(v) < best {
				best = float64(v)
			}
		}
	} else {
		best = topOf(&s.row, x)
	}
	return float64(scale * best) // rounded before anything is added to it
}

func (s *attnHead[F]) forward(c *attnCall[F], b, g int) {
	loadHead(grown(&s.k, c.keys*c.width), &c.k, b, g, 0, c.keys, c.width)
	loadHead(grown(&s.v, c.keys*c.values), &c.v, b, g, 0, c.keys, c.values)
	s.columns(&s.kt, s.k, c.keys, c.width)
	s.rowsOf(&s.vp, s.v, c.keys, c.values)
	ldo := roundUp(c.values, s.gemm.tile.cols)
	for head := g * c.group; head < (g+1)*c.group; head++ {
		for i := 0; i < c.queries && c.ctx.Err() == nil; i += queryBlock {
			n := min(queryBlock, c.queries-i)
			seen, ld := s.logits(c, b, head, i, n)
			for r := range n {
				row, visible := s.s[r*ld:], c.sees(i+r)
				s.inverse[r], s.lse[r] = 0, math.Inf(-1)
				if visible > 0 {
					most := s.top(row[:visible], c.scale)
					sum := s.exp(row[:visible], c.scale, most)
					s.inverse[r], s.lse[r] = 1/sum, most+elementary.Log(sum)
				}
				clear(row[visible:max(visible, seen)])
			}
			o := grown(&s.o, queryBlock*ldo)
			s.product(o, ldo, n, c.values, s.s, ld, 1, s.vp, c.keys, seen, false)
			for r := range n {
				scaleBy(&s.row, o[r*ldo:][:c.values], s.inverse[r])
			}
			storeHead(&c.out, b, head, i, n, c.values, o, ldo)
			if c.lse.there {
				store(c.lse.bytes, c.lse.dtype, c.lse.at(b, head, i), c.lse.stride[2], s.lse[:n])
			}
		}
	}
}

func (s *attnHead[F]) backward(c *attnCall[F], b, g int) {
	loadHead(grown(&s.k, c.keys*c.width), &c.k, b, g, 0, c.keys, c.width)
	loadHead(grown(&s.v, c.keys*c.values), &c.v, b, g, 0, c.keys, c.values)
	s.columns(&s.kt, s.k, c.keys, c.width)
	s.columns(&s.vt, s.v, c.keys, c.values)
	s.rowsOf(&s.kp, s.k, c.keys, c.width)
	nr := s.gemm.tile.cols
	ldk, ldv := roundUp(c.width, nr), roundUp(c.values, nr)
	clear(grown(&s.dk, c.keys*ldk))
	clear(grown(&s.dv, c.keys*ldv))
	for head := g * c.group; head < (g+1)*c.group; head++ {
		for i := 0; i < c.queries && c.ctx.Err() == nil; i += queryBlock {
			n := min(queryBlock, c.queries-i)
			seen, ld := s.logits(c, b, head, i, n)
			load(s.lse[:n], c.lse.bytes, c.lse.dtype, c.lse.at(b, head, i), c.lse.stride[2])
			loadHead(grown(&s.g, n*c.values), &c.grad, b, head, i, n, c.values)
			for r := range n {
				row, visible := s.s[r*ld:], c.sees(i+r)
				s.exp(row[:visible], c.scale, s.lse[r])
				clear(row[visible:max(visible, seen)])
			}
			if c.dv.there {
				s.rowsOf(&s.gp, s.g, n, c.values)
				s.product(s.dv, ldv, seen, c.values, s.s, 1, ld, s.gp, n, n, true)
			}
			if !c.dq.there && !c.dk.there {
				continue
			}
			t := grown(&s.t, queryBlock*ld)
			s.product(t, ld, n, seen, s.g, c.values, 1, s.vt, c.values, c.values, false)
			for r := range n {
				s.slope(t[r*ld:][:seen], s.s[r*ld:][:seen], c.sees(i+r), c.scale)
			}
			if c.dq.there {
				o := grown(&s.o, queryBlock*ldk)
				s.product(o, ldk, n, c.width, t, ld, 1, s.kp, c.keys, seen, false)
				storeHead(&c.dq, b, head, i, n, c.width, o, ldk)
			}
			if c.dk.there {
				s.rowsOf(&s.qp, s.q, n, c.width)
				s.product(s.dk, ldk, seen, c.width, t, 1, ld, s.qp, n, n, true)
			}
		}
	}
	if c.dk.there {
		storeHead(&c.dk, b, g, 0, c.keys, c.width, s.dk, ldk)
	}
	if c.dv.there {
		storeHead(&c.dv, b, g, 0, c.keys, c.values, s.dv, ldv)
	}
}

// slope sets t to scale p (t - sum(p t)) for the keys that are visible, else to 0.
func (s *attnHead[F]) slope(t, p []F, visible int, scale float64) {
	x := t[:visible]
	softmaxSlope(&s.row, x, p, dotWide(&s.row, x, p), scale)
	clear(t[visible:])
}
