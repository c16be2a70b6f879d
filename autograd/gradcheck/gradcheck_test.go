package gradcheck

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

func newDevice(t testing.TB) device.Device {
	dev := cpu.New(cpu.Threads(1))
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// normal is a tensor of random numbers.
func normal(t testing.TB, seed uint64, shape ...int) *tensor.Tensor {
	t.Helper()
	data := make([]float64, tensor.Shape(shape).Len())
	for i := range data {
		data[i] = random.Source{Seed: seed}.Normal(uint64(i))
	}
	x, err := tensor.FromSlice(data, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// product is a*b with a backward that a test may break.
type product struct {
	a, b  *tensor.Tensor
	spoil func(s *device.Stream, grads []*tensor.Tensor)
}

func (n *product) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	grads := []*tensor.Tensor{s.Binary(device.Mul, tensor.Float64, g, n.b), s.Binary(device.Mul, tensor.Float64, g, n.a)}
	if n.spoil != nil {
		n.spoil(s, grads)
	}
	return grads
}

func multiply(spoil func(s *device.Stream, grads []*tensor.Tensor)) Func {
	return func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
		t, ok := autograd.Begin("product", in...)
		if !ok {
			return t.Dead()
		}
		a, b := in[0].Tensor(), in[1].Tensor()
		return t.Record(t.Binary(device.Mul, tensor.Float64, a, b), &product{a, b, spoil}, in...)
	}
}

// change replaces one element of a gradient.
func change(t *testing.T, grad *tensor.Tensor, at int, f func(float64) float64) {
	x, err := grad.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	x[at] = f(x[at])
	if err := grad.SetFloat64s(x); err != nil {
		t.Fatal(err)
	}
}

func TestRightGradientsPass(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 2, 3), normal(t, 2, 2, 3)}
	Test(t, dev, multiply(nil), in, Options{})
	r, err := Check(dev, multiply(nil), in, Options{})
	if err != nil || r.Compared != 12 || r.Failed != 0 || r.Worst.Error > 1e-9 {
		t.Errorf("%v, %v", r, err)
	}
	if !strings.Contains(r.String(), "12 gradients compared, 0 wrong; the worst: input ") {
		t.Errorf("%v", r)
	}
}

// Differences of order 4 find what those of order 2 cannot: an error of 1e-8 in
// the gradient of a function with a large third derivative.
func TestOrder(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 2, 3), normal(t, 2, 2, 3)}
	curved := func(factor float64) Func {
		return func(tape *autograd.Tape, v []*autograd.Var) *autograd.Var {
			f := multiply(func(s *device.Stream, g []*tensor.Tensor) {
				change(t, g[0], 0, func(x float64) float64 { return x * factor })
			})
			y := f(tape, v)
			for range 3 { // to the 16th
				y = multiply(nil)(tape, []*autograd.Var{y, y})
			}
			return y
		}
	}
	for _, directions := range []int{0, 5} {
		o := Options{Order: 4, Step: 1e-4, Tolerance: 1e-9, Directions: directions}
		if r, err := Check(dev, curved(1), in, o); err != nil || r.Failed > 0 {
			t.Errorf("right gradients: %v, %v", r, err)
		}
		if r, err := Check(dev, curved(1+1e-7), in, o); err != nil || r.Failed == 0 {
			t.Errorf("wrong gradients: %v, %v", r, err)
		}
		o.Order = 2
		if r, err := Check(dev, curved(1), in, o); err != nil || r.Failed == 0 {
			t.Errorf("order 2 with this step is known to be too coarse: %v, %v", r, err)
		}
	}
}

// recorder is a testing.TB that notes failures.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, format)
	r.TB.Logf(format, args...)
}

// A wrong factor in one element is found and named, at every place.
func TestWrongElementIsNamed(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 2, 3), normal(t, 2, 2, 3)}
	for input := range 2 {
		for at := range 6 {
			f := multiply(func(s *device.Stream, g []*tensor.Tensor) {
				change(t, g[input], at, func(x float64) float64 { return x * 1.001 })
			})
			r, err := Check(dev, f, in, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed != 1 || r.Worst.Input != input || !slices.Equal(r.Worst.Index, []int{at / 3, at % 3}) {
				t.Errorf("input %d element %d: %v", input, at, r)
			}
			for _, part := range []string{"1 wrong", "input " + string(rune('0'+input)) + " at [", "backward gives", "differences give"} {
				if !strings.Contains(r.String(), part) {
					t.Errorf("%q does not say %q", r.String(), part)
				}
			}
			rec := &recorder{TB: t}
			if Test(rec, dev, f, in, Options{}); len(rec.said) != 1 {
				t.Errorf("Test failed %d times", len(rec.said))
			}
			// A random direction finds it as well.
			d, err := Check(dev, f, in, Options{Directions: 3})
			if err != nil || d.Failed == 0 || d.Compared != 3 || d.Worst.Input != -1 || !strings.Contains(d.String(), "direction") {
				t.Errorf("directions: %v, %v", d, err)
			}
		}
	}
}

// Numbers that are no numbers fail, are the worst, and hide nothing.
func TestNotANumber(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 4), normal(t, 2, 4)}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for at := range 4 {
			r, err := Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
				change(t, g[0], at, func(float64) float64 { return bad })
			}), in, Options{})
			if err != nil || r.Failed != 1 || r.Worst.Input != 0 || r.Worst.Index[0] != at {
				t.Errorf("%v at %d: %v, %v", bad, at, r, err)
			}
			// A wrong element beside it is counted too.
			r, err = Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
				change(t, g[0], at, func(float64) float64 { return bad })
				change(t, g[0], (at+1)%4, func(x float64) float64 { return x + 1 })
			}), in, Options{})
			if err != nil || r.Failed != 2 {
				t.Errorf("%v and a wrong one: %v, %v", bad, r, err)
			}
			if r, err = Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
				change(t, g[0], at, func(float64) float64 { return bad })
			}), in, Options{Directions: 2}); err != nil || r.Failed != 2 {
				t.Errorf("%v in directions: %v, %v", bad, r, err)
			}
		}
	}
}

func TestNondeterministicBackward(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 2, 2), normal(t, 2, 2, 2)}
	calls := 0
	_, err := Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
		calls++
		if calls%2 == 0 {
			change(t, g[1], 2, func(x float64) float64 { return math.Nextafter(x, 9) })
		}
	}), in, Options{})
	if err == nil || !strings.Contains(err.Error(), "not deterministic") || !strings.Contains(err.Error(), "input 1 at [1 0]") {
		t.Errorf("%v", err)
	}
	rec := &recorder{TB: t}
	calls = 0
	Test(rec, dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
		calls++
		change(t, g[0], 0, func(x float64) float64 { return x + float64(calls) })
	}), in, Options{})
	if len(rec.said) != 1 {
		t.Errorf("Test failed %d times", len(rec.said))
	}
}

func TestWrongShapes(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 2, 3), normal(t, 2, 2, 3)}
	_, err := Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) {
		g[1] = s.Full(tensor.Float64, 1, 3, 2)
	}), in, Options{})
	if !errors.Is(err, tensor.ErrShape) || !strings.Contains(err.Error(), "gradient of operand 1 is (3,2) float64, want (2,3) float64") {
		t.Errorf("%v", err)
	}
	if _, err = Check(dev, multiply(func(s *device.Stream, g []*tensor.Tensor) { g[0] = nil }), in, Options{}); err == nil || !strings.Contains(err.Error(), "no gradient for operand 0") {
		t.Errorf("%v", err)
	}
	calls := 0
	grows := func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
		calls++
		return ops.Slice(in[0], 1, 0, 1+calls%2)
	}
	if _, err = Check(dev, grows, in, Options{}); err == nil || !strings.Contains(err.Error(), "elements") {
		t.Errorf("a result that changes its size: %v", err)
	}
}

func TestWrongArguments(t *testing.T) {
	dev := newDevice(t)
	x := normal(t, 1, 2)
	f32, err := tensor.Zeros(tensor.Float32, 2)
	if err != nil {
		t.Fatal(err)
	}
	same := func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return in[0] }
	for name, call := range map[string]func() (Report, error){
		"device":     func() (Report, error) { return Check(nil, same, []*tensor.Tensor{x}, Options{}) },
		"function":   func() (Report, error) { return Check(dev, nil, []*tensor.Tensor{x}, Options{}) },
		"inputs":     func() (Report, error) { return Check(dev, same, nil, Options{}) },
		"nil input":  func() (Report, error) { return Check(dev, same, []*tensor.Tensor{nil}, Options{}) },
		"dtype":      func() (Report, error) { return Check(dev, same, []*tensor.Tensor{f32}, Options{}) },
		"order":      func() (Report, error) { return Check(dev, same, []*tensor.Tensor{x}, Options{Order: 3}) },
		"step":       func() (Report, error) { return Check(dev, same, []*tensor.Tensor{x}, Options{Step: -1}) },
		"tolerance":  func() (Report, error) { return Check(dev, same, []*tensor.Tensor{x}, Options{Tolerance: math.NaN()}) },
		"directions": func() (Report, error) { return Check(dev, same, []*tensor.Tensor{x}, Options{Directions: -1}) },
		"no result": func() (Report, error) {
			return Check(dev, func(*autograd.Tape, []*autograd.Var) *autograd.Var { return nil }, []*tensor.Tensor{x}, Options{})
		},
		"result dtype": func() (Report, error) {
			return Check(dev, func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Cast(in[0], tensor.Float32) }, []*tensor.Tensor{x}, Options{})
		},
		"constant": func() (Report, error) {
			return Check(dev, func(t *autograd.Tape, in []*autograd.Var) *autograd.Var { return t.Const(x) }, []*tensor.Tensor{x}, Options{})
		},
		"failure": func() (Report, error) {
			return Check(dev, func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Reshape(in[0], 5) }, []*tensor.Tensor{x}, Options{})
		},
	} {
		if r, err := call(); err == nil || r.Compared != 0 {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	// An input that is not used has the gradient zero.
	r, err := Check(dev, func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Square(in[1]) }, []*tensor.Tensor{x, normal(t, 3, 2)}, Options{})
	if err != nil || r.Failed != 0 || r.Compared != 4 {
		t.Errorf("%v, %v", r, err)
	}
}

// Inputs reach the function with the strides they have.
func TestStridedInputs(t *testing.T) {
	dev := newDevice(t)
	must := func(x *tensor.Tensor, err error) *tensor.Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	base := normal(t, 1, 4, 6)
	turned := must(base.Transpose(0, 1))
	part := must(must(turned.Slice(0, 1, 4)).Slice(1, 1, 3)) // (3,2), strides (1,6), offset 7
	wide := must(normal(t, 2, 1, 2).Expand(3, 2))
	var strides [][]int
	f := func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
		if strides == nil {
			for _, v := range in {
				strides = append(strides, slices.Clone(v.Tensor().Strides()))
			}
			if in[0].Tensor().Offset() != part.Offset() {
				t.Errorf("offset %d, want %d", in[0].Tensor().Offset(), part.Offset())
			}
		}
		return ops.Tanh(ops.MatMul(ops.Transpose(in[0], 0, 1), ops.Exp(in[1])))
	}
	before, _ := part.Bits()
	for _, o := range []Options{{}, {Directions: 4}} {
		r, err := Check(dev, f, []*tensor.Tensor{part, wide}, o)
		if err != nil || r.Failed != 0 {
			t.Errorf("%v, %v", r, err)
		}
	}
	if !slices.Equal(strides[0], part.Strides()) {
		t.Errorf("strides %v, want %v", strides[0], part.Strides())
	}
	if after, _ := part.Bits(); !slices.Equal(before, after) || part.Memory().Version() != 0 {
		t.Error("the caller's tensor was written")
	}
	// A backward that takes the strides for row-major is found.
	wrong := func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
		t, ok := autograd.Begin("square", in...)
		if !ok {
			return t.Dead()
		}
		x := in[0].Tensor()
		flat := t.View(func() (*tensor.Tensor, error) { return tensor.New(x.Memory(), tensor.Float64, x.Shape()...) })
		return t.Record(t.Binary(device.Mul, tensor.Float64, x, x), &product{a: flat, b: flat}, in[0], in[0])
	}
	if r, err := Check(dev, wrong, []*tensor.Tensor{part}, Options{}); err != nil || r.Failed == 0 {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := Check(dev, wrong, []*tensor.Tensor{normal(t, 1, 3, 2)}, Options{}); err != nil || r.Failed != 0 {
		t.Errorf("dense: %v, %v", r, err)
	}
}

func TestOptions(t *testing.T) {
	dev := newDevice(t)
	in := []*tensor.Tensor{normal(t, 1, 3)}
	exp := func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Exp(in[0]) }
	if r, err := Check(dev, exp, in, Options{Tolerance: 1e-18}); err != nil || r.Failed == 0 {
		t.Errorf("no difference is exact to 1e-18: %v, %v", r, err)
	}
	if r, err := Check(dev, exp, in, Options{Step: 0.1}); err != nil || r.Failed == 0 {
		t.Errorf("a step of 0.1 is too long: %v, %v", r, err)
	}
	a, _ := Check(dev, exp, in, Options{Directions: 1, Seed: 1})
	b, _ := Check(dev, exp, in, Options{Directions: 1, Seed: 2})
	again, _ := Check(dev, exp, in, Options{Directions: 1, Seed: 1})
	if a.Worst.Analytic == b.Worst.Analytic || a.Worst.Analytic != again.Worst.Analytic || a.Worst.Numeric != again.Worst.Numeric {
		t.Errorf("the seed does not decide: %v, %v, %v", a, b, again)
	}
	none, err := tensor.Zeros(tensor.Float64, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Check(dev, exp, []*tensor.Tensor{none}, Options{}); err != nil || r.Compared != 0 || r.String() != "0 gradients compared, 0 wrong" {
		t.Errorf("nothing: %v, %v", r, err)
	}
}
