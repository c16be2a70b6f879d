package cpu

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// readIDs writes the ids of a tensor to dst and reports the first that is not
// a row of a table of the given number of rows.
func readIDs(op string, dst []int, ids *tensor.Tensor, rows int) error {
	if err := rawIDs(dst, ids); err != nil {
		return err
	}
	for i, id := range dst {
		if id < 0 || id >= rows {
			return &tensor.ArgError{Op: op, Arg: "ids[" + strconv.Itoa(i) + "]", Got: strconv.Itoa(id),
				Want: fmt.Sprintf("a row of the %d there are", rows), Kind: tensor.ErrIndex}
		}
	}
	return nil
}

// rawIDs writes the numbers of an integer tensor to dst; what is too large for
// an int becomes the least of them.
func rawIDs(dst []int, ids *tensor.Tensor) error {
	b, err := bytesOf(ids)
	if err != nil || len(dst) == 0 {
		return err
	}
	at, stride := ids.Offset(), ids.Strides()[0]
	if ids.DType() == tensor.Int32 {
		src := elems[int32](b)
		for i := range dst {
			dst[i] = int(src[at+i*stride])
		}
		return nil
	}
	src := elems[int64](b)
	for i := range dst {
		if id := src[at+i*stride]; id == int64(int(id)) {
			dst[i] = int(id)
		} else {
			dst[i] = math.MinInt
		}
	}
	return nil
}

// ints is room for n numbers, to be given back by Free.
func (d *Device) ints(n int) ([]int, tensor.Memory, error) {
	m, err := d.Alloc(n * tensor.Int64.Size())
	if err != nil {
		return nil, nil, err
	}
	return elems[int](m.(*tensor.Host).Bytes())[:n:n], m, nil
}

// Gather: row i of out = row ids[i] of table; exact to the bit within one dtype.
func (d *Device) Gather(ctx context.Context, out, table, ids *tensor.Tensor) error {
	if err := device.CheckGather(d.Name(), out, table, ids); err != nil {
		return err
	}
	row, m, err := d.ints(ids.Len())
	if err != nil {
		return err
	}
	defer d.Free(m)
	if err := readIDs("gather", row, ids, table.Dim(0)); err != nil {
		return err
	}
	to, err := operandOf(out)
	if err != nil {
		return err
	}
	from, err := operandOf(table)
	if err != nil {
		return err
	}
	g := gathers.Get().(*gather)
	defer gathers.Put(g)
	width := out.Dim(1)
	*g = gather{move: moveOf(&to, &from), rows: row, width: width, per: max(1, grain/max(1, width)),
		to: [2]int{out.Strides()[0], out.Strides()[1]}, from: [2]int{table.Strides()[0], table.Strides()[1]}}
	err = d.run(ctx, (out.Len()+g.per*width-1)/max(1, g.per*width), g)
	*g = gather{}
	out.Memory().Written()
	return err
}

// gather is one call of Gather.
type gather struct {
	move       move
	rows       []int // of the table
	width, per int   // of a row; rows of a chunk
	to, from   [2]int
}

var gathers = sync.Pool{New: func() any { return new(gather) }}

func (g *gather) chunk(chunk int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	m := &g.move
	for i := chunk * g.per; i < min((chunk+1)*g.per, len(g.rows)); i++ {
		m.run(m, s, g.width, m.out.offset+i*g.to[0], g.to[1], m.in.offset+g.rows[i]*g.from[0], g.from[1])
	}
}

func operandOf(t *tensor.Tensor) (operand, error) {
	b, err := bytesOf(t)
	return operand{bytes: b, dtype: t.DType(), offset: t.Offset()}, err
}

// ScatterAdd: row ids[i] of out += row i of x. Each row that is named is summed
// in float64, from what it was through the rows of x in order, and rounded once.
func (d *Device) ScatterAdd(ctx context.Context, out, ids, x *tensor.Tensor) error {
	if err := device.CheckScatterAdd(d.Name(), out, ids, x); err != nil {
		return err
	}
	if isWide64(x) {
		return scatterAdd[float64](ctx, d, out, ids, x)
	}
	return scatterAdd[float32](ctx, d, out, ids, x)
}

func scatterAdd[F real](ctx context.Context, d *Device, out, ids, x *tensor.Tensor) error {
	n, rows, width := ids.Len(), out.Dim(0), out.Dim(1)
	numbers, m, err := d.ints(2*n + rows + 1)
	if err != nil {
		return err
	}
	defer d.Free(m)
	id, order, end := numbers[:n], numbers[n:2*n], numbers[2*n:]
	if err := readIDs("scatter-add", id, ids, rows); err != nil {
		return err
	}
	to, err := operandOf(out)
	if err != nil {
		return err
	}
	from, err := operandOf(x)
	if err != nil {
		return err
	}

	// A counting sort, which keeps equal ids in order. First end[v+1] is the
	// number of v; then end[v] is where v begins; at last, where it ends.
	clear(end)
	for _, v := range id {
		end[v+1]++
	}
	for v := range rows {
		end[v+1] += end[v]
	}
	for i, v := range id {
		order[end[v]] = i
		end[v]++
	}
	named := id[:0] // each id once, ascending; id itself has served
	for v, begin := 0, 0; v < rows; v++ {
		if end[v] > begin {
			named = append(named, v)
		}
		begin = end[v]
	}

	pool := &scatters32
	if dtypeOf[F]() == tensor.Float64 {
		pool = &scatters64
	}
	c := pool.Get().(*scatter[F])
	defer pool.Put(c)
	*c = scatter[F]{out: to, x: from, named: named, order: order, end: end, width: width,
		to: [2]int{out.Strides()[0], out.Strides()[1]}, from: [2]int{x.Strides()[0], x.Strides()[1]}}
	// Chunks of about grain elements, if every row is named equally often.
	c.per = max(1, grain*len(named)/max(1, n*min(width, tile)))
	err = d.run(ctx, (c.units()+c.per-1)/c.per, c)
	*c = scatter[F]{}
	out.Memory().Written()
	return err
}

// scatter is one call of ScatterAdd.
type scatter[F real] struct {
	out, x     operand
	named      []int // the rows of out that are added to
	order, end []int // the rows of x by their row of out v, those of v before end[v]
	width, per int   // of a row; tiles of rows in a chunk
	to, from   [2]int
}

var (
	scatters32 = sync.Pool{New: func() any { return new(scatter[float32]) }}
	scatters64 = sync.Pool{New: func() any { return new(scatter[float64]) }}
)

// across is how many tiles make a row.
func (c *scatter[F]) across() int { return (c.width + tile - 1) / tile }

func (c *scatter[F]) units() int { return len(c.named) * c.across() }

func (c *scatter[F]) chunk(chunk int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	across := c.across()
	for u := chunk * c.per; u < min((chunk+1)*c.per, c.units()); u++ {
		v, col := c.named[u/across], u%across*tile
		begin := 0
		if v > 0 {
			begin = c.end[v-1]
		}
		w := min(tile, c.width-col)
		at := c.out.offset + v*c.to[0] + col*c.to[1]
		sum := tileOf[float64](s, 0)[:w]
		load(sum, c.out.bytes, c.out.dtype, at, c.to[1])
		for _, i := range c.order[begin:c.end[v]] {
			addWide(sum, widened(&c.x, tileOf[F](s, 1), w, c.x.offset+i*c.from[0]+col*c.from[1], c.from[1]))
		}
		store(c.out.bytes, c.out.dtype, at, c.to[1], sum)
	}
}
