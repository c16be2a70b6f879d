// Package gradcheck compares gradients with finite differences: what a test of
// an own operation calls.
//
//	func TestMyOp(t *testing.T) {
//		gradcheck.Test(t, cpu.New(), func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
//			return MyOp(in[0], in[1])
//		}, []*tensor.Tensor{x, w}, gradcheck.Options{})
//	}
package gradcheck

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Func applies the operation under test to inputs that are watched on a tape.
// It must give the same result for the same inputs.
type Func func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var

// Options may be left zero.
type Options struct {
	Order      int     // of the differences: 2 by two points, or 4 by four, for functions that are smooth over twice the step; 0: 2
	Step       float64 // of the central difference, relative to max(1, |x|); 0: 6e-6 for order 2 and 7e-4 for order 4, the third and the fifth root of float64's epsilon
	Tolerance  float64 // of the error relative to the largest gradient of the input, at least 1; 0: 1e-7
	Directions int     // 0: every element of every input; else as many random directions over all inputs
	Seed       uint64  // of the random seed gradient and directions
}

// Report is the outcome of a check.
type Report struct {
	Worst    Difference // the one with the largest error
	Compared int        // elements or directions
	Failed   int        // beyond the tolerance
}

// Difference is one comparison.
type Difference struct {
	Input             int     // index of the input; -1 for a direction
	Index             []int   // of the element; nil for a direction
	Analytic, Numeric float64 // what the backward gives, and what differences give
	Error             float64 // |analytic - numeric| relative to the scale of the input's gradient
}

// String is one line: where, both numbers, and the relative error.
func (d Difference) String() string {
	where := "a random direction"
	if d.Input >= 0 {
		where = fmt.Sprintf("input %d at %v", d.Input, d.Index)
	}
	return fmt.Sprintf("%s: backward gives %.12g, differences give %.12g, relative error %.3g", where, d.Analytic, d.Numeric, d.Error)
}

// Test fails t if Check finds an error or a wrong gradient.
func Test(t testing.TB, dev device.Device, f Func, in []*tensor.Tensor, o Options) {
	t.Helper()
	r, err := Check(dev, f, in, o)
	if err != nil {
		t.Errorf("gradcheck: %v", err)
	} else if r.Failed > 0 {
		t.Errorf("gradcheck: %d of %d gradients are wrong; the worst: %v", r.Failed, r.Compared, r.Worst)
	}
}

// Check runs the backward of f twice, which must agree bit for bit, and
// compares it with central differences of the sum of f's result times a random
// seed gradient. Inputs are float64 tensors on the host, of any strides.
func Check(dev device.Device, f Func, in []*tensor.Tensor, o Options) (Report, error) {
	if o.Order == 0 {
		o.Order = 2
	}
	if o.Step == 0 {
		o.Step = 6e-6
		if o.Order == 4 {
			o.Step = 7e-4
		}
	}
	if o.Tolerance == 0 {
		o.Tolerance = 1e-7
	}
	if dev == nil || f == nil || len(in) == 0 || !(o.Step > 0) || !(o.Tolerance > 0) || o.Directions < 0 || o.Order != 2 && o.Order != 4 {
		return Report{}, &tensor.ArgError{Op: "gradcheck", Arg: "arguments", Got: "incomplete", Want: "a device, a function, inputs and positive options", Kind: tensor.ErrMissing}
	}
	values := make([][]float64, len(in))
	for i, x := range in {
		if x.DType() != tensor.Float64 {
			return Report{}, &tensor.ArgError{Op: "gradcheck", Arg: fmt.Sprintf("in[%d]", i), Got: x.DType().String(), Want: "float64", Kind: tensor.ErrDType}
		}
		var err error
		if values[i], err = x.Float64s(); err != nil {
			return Report{}, err
		}
	}
	c := check{dev: dev, f: f, in: in, values: values, o: o}
	grads, err := c.backward()
	if err != nil {
		return Report{}, err
	}
	again, err := c.backward()
	if err != nil {
		return Report{}, err
	}
	for i := range grads {
		for j := range grads[i] {
			if math.Float64bits(grads[i][j]) != math.Float64bits(again[i][j]) {
				return Report{}, fmt.Errorf("the backward is not deterministic: input %d at %v got %v, then %v",
					i, index(j, in[i].Shape()), grads[i][j], again[i][j])
			}
		}
	}
	if o.Directions > 0 {
		return c.directions(grads)
	}
	return c.elements(grads)
}

type check struct {
	dev    device.Device
	f      Func
	in     []*tensor.Tensor
	values [][]float64
	seed   []float64 // the gradient of the result
	o      Options
}

// run evaluates f at the values, in the strides of the inputs.
func (c *check) run(values [][]float64, use func(t *autograd.Tape, vars []*autograd.Var, out *autograd.Var) error) error {
	t := autograd.NewTape(context.Background(), c.dev)
	defer t.Release()
	vars := make([]*autograd.Var, len(c.in))
	for i, x := range c.in {
		host, err := like(x, values[i])
		if err != nil {
			return err
		}
		if c.dev.Name() != tensor.CPU {
			host = t.Upload(host)
		}
		vars[i] = t.Watch(host)
	}
	out := c.f(t, vars)
	if err := out.Err(); err != nil {
		return err
	}
	if out.DType() != tensor.Float64 {
		return &tensor.ArgError{Op: "gradcheck", Arg: "result", Got: out.DType().String(), Want: "float64", Kind: tensor.ErrDType}
	}
	return use(t, vars, out)
}

// like is a tensor of x's shape and strides in memory of its own.
func like(x *tensor.Tensor, values []float64) (*tensor.Tensor, error) {
	if x.HasOverlap() || x.Len() == 0 {
		return tensor.FromSlice(values, x.Shape()...) // an expanded input has one value for many elements: make it dense
	}
	last := x.Offset()
	for i, n := range x.Shape() {
		last += (n - 1) * x.Strides()[i]
	}
	t, err := tensor.NewStrided(tensor.NewHost((last+1)*8), tensor.Float64, x.Shape(), x.Strides(), x.Offset())
	if err != nil {
		return nil, err
	}
	return t, t.SetFloat64s(values)
}

// backward is the gradients of all inputs.
func (c *check) backward() (grads [][]float64, err error) {
	err = c.run(c.values, func(t *autograd.Tape, vars []*autograd.Var, out *autograd.Var) error {
		n := out.Tensor().Len()
		if c.seed == nil {
			c.seed = make([]float64, n)
			for i := range c.seed {
				c.seed[i] = random.Source{Seed: c.o.Seed}.Normal(uint64(i))
			}
		}
		if n != len(c.seed) {
			return fmt.Errorf("f gave %d elements, then %d", len(c.seed), n)
		}
		host, err := tensor.FromSlice(c.seed, out.Shape()...)
		if err != nil {
			return err
		}
		if c.dev.Name() != tensor.CPU {
			host = t.Upload(host)
		}
		g, err := t.BackwardFrom(out, host)
		if err != nil {
			return err
		}
		for i, v := range vars {
			gi := make([]float64, len(c.values[i])) // zeros where f does not use the input
			if x := g.Of(v.Tensor()); x != nil {
				down, err := t.Download(x)
				if err != nil {
					return err
				}
				if gi, err = down.Float64s(); err != nil {
					return err
				}
			}
			grads = append(grads, gi)
		}
		return nil
	})
	return grads, err
}

// loss is the sum of f's result times the seed.
func (c *check) loss(values [][]float64) (sum float64, err error) {
	err = c.run(values, func(t *autograd.Tape, _ []*autograd.Var, out *autograd.Var) error {
		y, err := out.Float64s()
		if err != nil {
			return err
		}
		var low float64 // the sum's rounding error, so that it does not drown the difference (Neumaier, 1974)
		for i, x := range y {
			p := float64(x * c.seed[i])
			s := sum + p
			if math.Abs(sum) >= math.Abs(p) {
				low += (sum - s) + p
			} else {
				low += (p - s) + sum
			}
			sum = s
		}
		sum += low
		return nil
	})
	return sum, err
}

func (c *check) elements(grads [][]float64) (r Report, err error) {
	for i := range c.values {
		scale := 1.0
		for _, g := range grads[i] {
			if a := math.Abs(g); a > scale && !math.IsInf(a, 0) {
				scale = a
			}
		}
		for j, x := range c.values[i] {
			numeric, err := c.difference(func(step float64) (float64, error) {
				h := step * math.Max(1, math.Abs(x))
				up, down := x+h, x-h
				defer func() { c.values[i][j] = x }()
				c.values[i][j] = up
				a, err := c.loss(c.values)
				if err != nil {
					return 0, err
				}
				c.values[i][j] = down
				b, err := c.loss(c.values)
				return (a - b) / (up - down), err
			})
			if err != nil {
				return r, err
			}
			r.add(Difference{Input: i, Index: index(j, c.in[i].Shape()), Analytic: grads[i][j], Numeric: numeric}, scale, c.o.Tolerance)
		}
	}
	return r, nil
}

// difference is the derivative from central differences of a step. Order 4
// removes the error's first term by those of twice the step (Richardson, 1911).
func (c *check) difference(central func(step float64) (float64, error)) (float64, error) {
	near, err := central(c.o.Step)
	if err != nil || c.o.Order == 2 {
		return near, err
	}
	far, err := central(2 * c.o.Step)
	return near + (near-far)/3, err
}

func (c *check) directions(grads [][]float64) (r Report, err error) {
	for d := range c.o.Directions {
		src := random.Source{Seed: c.o.Seed, Stream: uint64(d) + 1}
		var analytic, scale float64
		var k uint64
		dir := make([][]float64, len(c.values))
		for i := range c.values {
			for j := range c.values[i] {
				dir[i] = append(dir[i], src.Normal(k))
				k++
				term := grads[i][j] * dir[i][j]
				analytic += term
				scale += term * term
			}
		}
		along := func(step float64) [][]float64 {
			at := make([][]float64, len(c.values))
			for i := range at {
				for j, x := range c.values[i] {
					at[i] = append(at[i], x+step*dir[i][j])
				}
			}
			return at
		}
		numeric, err := c.difference(func(step float64) (float64, error) {
			a, err := c.loss(along(step))
			if err != nil {
				return 0, err
			}
			b, err := c.loss(along(-step))
			return (a - b) / (2 * step), err
		})
		if err != nil {
			return r, err
		}
		r.add(Difference{Input: -1, Analytic: analytic, Numeric: numeric}, math.Max(1, math.Sqrt(scale)), c.o.Tolerance)
	}
	return r, nil
}

func (r *Report) add(d Difference, scale, tolerance float64) {
	d.Error = math.Abs(d.Analytic-d.Numeric) / scale
	if d.Analytic == d.Numeric {
		d.Error = 0
	}
	r.Compared++
	if !(d.Error <= tolerance) { // NaN fails
		r.Failed++
	}
	if r.Compared == 1 || !(d.Error <= r.Worst.Error) && !math.IsNaN(r.Worst.Error) {
		r.Worst = d
	}
}

func index(flat int, shape tensor.Shape) []int {
	out := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = flat % shape[i]
		flat /= shape[i]
	}
	return out
}

// String is a summary of one line.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d gradients compared, %d wrong", r.Compared, r.Failed)
	if r.Compared > 0 {
		fmt.Fprintf(&b, "; the worst: %v", r.Worst)
	}
	return b.String()
}
