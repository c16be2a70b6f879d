package cpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.Softmax = (*Device)(nil)

// softmaxWidest is the longest row that is taken: one worker does a row, and
// keeps it in its cache.
const softmaxWidest = 1 << 18

// softmaxRow is one worker's memory: rows of C.
type softmaxRow struct {
	x, g, y []float32
	row     rowScratch
	sums    [lanes]float64
}

var softmaxRows = sync.Pool{New: func() any { return new(softmaxRow) }}

// softmaxCall is one call: what its rows share.
type softmaxCall struct {
	row              func(c *softmaxCall, s *softmaxRow, i int) // what is done with each
	rows, width      int
	log              bool
	scale            float64
	x, y, g          operandRows // y is what is written
	statistics, loss operandRows
	targets          []int // a class, or below 0 where it is ignored
}

var softmaxCalls = sync.Pool{New: func() any { return new(softmaxCall) }}

// end makes it ready for another call, which takes its memory.
func (c *softmaxCall) end() {
	*c = softmaxCall{targets: c.targets}
	softmaxCalls.Put(c)
}

// begin takes the rows of x and of other tensors.
func (c *softmaxCall) begin(x, y, g, stats, loss *tensor.Tensor) error {
	c.width = x.Dim(-1)
	if x.DType() == tensor.Float64 || c.width > softmaxWidest {
		return fmt.Errorf("softmax of %v: %w", x, errors.ErrUnsupported)
	}
	c.rows = x.Len() / c.width
	for _, p := range []struct {
		to *operandRows
		t  *tensor.Tensor
	}{{&c.x, x}, {&c.y, y}, {&c.g, g}, {&c.statistics, stats}, {&c.loss, loss}} {
		var err error
		if *p.to, err = rowsOfTensor(p.t); err != nil {
			return err
		}
	}
	return nil
}

// each calls row for every row, with a worker's memory for it.
func (c *softmaxCall) each(ctx context.Context, d *Device, row func(c *softmaxCall, s *softmaxRow, i int)) error {
	c.row = row
	per := c.perChunk()
	return d.run(ctx, (c.rows+per-1)/per, c)
}

func (c *softmaxCall) perChunk() int { return max(1, grain/c.width) }

func (c *softmaxCall) chunk(chunk int) {
	s := softmaxRows.Get().(*softmaxRow)
	defer softmaxRows.Put(s)
	for _, x := range []*[]float32{&s.x, &s.g, &s.y} {
		grown(x, c.width)
	}
	per := c.perChunk()
	for i := chunk * per; i < min((chunk+1)*per, c.rows); i++ {
		c.row(c, s, i)
	}
}

// out is where row i of the result is made: where it belongs if it can be.
func (c *softmaxCall) out(s *softmaxRow, i int) (y []float32, direct bool) {
	if c.y.dtype == tensor.Float32 && c.y.step == 1 {
		return elems[float32](c.y.bytes)[c.y.at(i):][:c.width], true
	}
	return s.y, false
}

// stats of row i: its largest element and the sum of exp(x - top).
func (c *softmaxCall) stats(i int) (top, sum *float64) {
	r := &c.statistics
	at := r.at(i)
	x := elems[float64](r.bytes)
	return &x[at], &x[at+r.step]
}

// find sets y to exp(x - top), and the stats of row i.
func (c *softmaxCall) find(s *softmaxRow, i int, y, x []float32) (top, sum float64) {
	top = topOf(&s.row, x)
	s.exp(y, x, top)
	if sum = joinLanes(s.row.lanes[:]); sum != sum {
		sum = math.NaN() // which NaN came through depends on the machine
	}
	t, u := c.stats(i)
	*t, *u = top, sum
	return top, sum
}

// exp sets y to exp(x - less), and the lanes to its sum.
func (s *softmaxRow) exp(y, x []float32, less float64) {
	s.row.lanes = [16]float64{}
	s.row.c = [2]float64{1, less}
	expLanes(y, x, &s.row)
}

// SoftmaxForward: see device.Softmax.
func (d *Device) SoftmaxForward(ctx context.Context, y, stats, x *tensor.Tensor, log bool) error {
	if err := device.CheckSoftmax(d.Name(), y, stats, x); err != nil {
		return err
	}
	c := softmaxCalls.Get().(*softmaxCall)
	defer c.end()
	c.log = log
	if err := c.begin(x, y, nil, stats, nil); err != nil {
		return err
	}
	err := c.each(ctx, d, (*softmaxCall).softmax)
	written(y, stats)
	return err
}

func (c *softmaxCall) softmax(s *softmaxRow, i int) {
	x := c.x.row(s.x, i)
	out, direct := c.out(s, i)
	e := out
	if c.log {
		e = s.g // x may be where the result belongs
	}
	top, sum := c.find(s, i, e, x)
	if c.log {
		shiftBy(&s.row, out, x, top, elementary.Log(sum))
	} else {
		scaleBy(&s.row, out, 1/sum)
	}
	if !direct {
		c.y.put(i, out)
	}
}

// SoftmaxBackward: see device.Softmax.
func (d *Device) SoftmaxBackward(ctx context.Context, gradX, gradY, x, stats *tensor.Tensor, log bool) error {
	if err := device.CheckSoftmaxBackward(d.Name(), gradX, gradY, x, stats); err != nil {
		return err
	}
	c := softmaxCalls.Get().(*softmaxCall)
	defer c.end()
	c.log = log
	if err := c.begin(x, gradX, gradY, stats, nil); err != nil {
		return err
	}
	err := c.each(ctx, d, (*softmaxCall).slope)
	written(gradX)
	return err
}

func (c *softmaxCall) slope(s *softmaxRow, i int) {
	e, g := s.x, c.g.row(s.g, i)
	top, sum := c.stats(i)
	s.exp(e, c.x.row(s.x, i), *top)
	out, direct := c.out(s, i)
	copy(out, g)
	if c.log {
		s.sums = [lanes]float64{}
		foldTile(device.Sum, &s.sums, g)
		subtractTimes(&s.row, out, e, join(device.Sum, &s.sums) / *sum)
	} else {
		softmaxSlope(&s.row, out, e, dotWide(&s.row, g, e) / *sum, 1 / *sum)
	}
	if !direct {
		c.y.put(i, out)
	}
}

// targetsOf reads the classes; those to be ignored become -1.
func (c *softmaxCall) targetsOf(a *device.CrossEntropyArgs) error {
	if cap(c.targets) < c.rows {
		c.targets = make([]int, c.rows)
	}
	c.targets = c.targets[:c.rows]
	if err := rawIDs(c.targets, a.Targets); err != nil {
		return err
	}
	for i, id := range c.targets {
		switch {
		case id == a.Ignore:
			c.targets[i] = -1
		case id < 0 || id >= c.width:
			return &tensor.ArgError{Op: "cross entropy", Arg: "targets[" + strconv.Itoa(i) + "]", Got: strconv.Itoa(id),
				Want: fmt.Sprintf("a class below %d", c.width), Kind: tensor.ErrIndex}
		}
	}
	return nil
}

// CrossEntropyForward: see device.Softmax.
func (d *Device) CrossEntropyForward(ctx context.Context, a *device.CrossEntropyArgs, loss, stats *tensor.Tensor) error {
	if err := device.CheckCrossEntropy(d.Name(), a, loss, stats); err != nil {
		return err
	}
	c := softmaxCalls.Get().(*softmaxCall)
	defer c.end()
	if err := c.begin(a.X, nil, nil, stats, loss); err != nil {
		return err
	}
	if err := c.targetsOf(a); err != nil {
		return err
	}
	err := c.each(ctx, d, (*softmaxCall).crossEntropy)
	written(loss, stats)
	return err
}

func (c *softmaxCall) crossEntropy(s *softmaxRow, i int) {
	var loss float64
	if target := c.targets[i]; target >= 0 {
		x := c.x.row(s.x, i)
		top, sum := c.find(s, i, s.y, x)
		loss = elementary.Log(sum) - (float64(x[target]) - top)
	} else {
		top, sum := c.stats(i)
		*top, *sum = 0, 0
	}
	elems[float32](c.loss.bytes)[c.loss.at(i)] = float32(loss)
}

// CrossEntropyBackward: see device.Softmax.
func (d *Device) CrossEntropyBackward(ctx context.Context, a *device.CrossEntropyArgs, stats, gradLoss *tensor.Tensor, scale float64, gradX *tensor.Tensor) error {
	if err := device.CheckCrossEntropyBackward(d.Name(), a, stats, gradLoss, gradX); err != nil {
		return err
	}
	c := softmaxCalls.Get().(*softmaxCall)
	defer c.end()
	c.scale = scale
	if err := c.begin(a.X, gradX, gradLoss, stats, nil); err != nil {
		return err
	}
	if err := c.targetsOf(a); err != nil {
		return err
	}
	err := c.each(ctx, d, (*softmaxCall).crossEntropySlope)
	written(gradX)
	return err
}

func (c *softmaxCall) crossEntropySlope(s *softmaxRow, i int) {
	out, direct := c.out(s, i)
	if target := c.targets[i]; target < 0 {
		clear(out)
	} else {
		x := c.x.row(s.x, i)
		top, sum := c.stats(i)
		factor := float64(elems[float32](c.g.bytes)[c.g.at(i)]) * c.scale
		s.exp(out, x, *top)
		scaleBy(&s.row, out, factor / *sum)
		out[target] = float32((expNear(float64(x[target])-*top) / *sum - 1) * factor)
	}
	if !direct {
		c.y.put(i, out)
	}
}
