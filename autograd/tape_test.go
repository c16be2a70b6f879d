package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func newDevice(t testing.TB) *cpu.Device {
	dev := cpu.New(cpu.Threads(2))
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

func newTape(t testing.TB) *autograd.Tape {
	tape := autograd.NewTape(context.Background(), newDevice(t))
	t.Cleanup(tape.Release)
	return tape
}

func host(t testing.TB, d tensor.DType, data []float64, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromFloat64s(d, data, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func scalar(t testing.TB, x float64) *tensor.Tensor { return host(t, tensor.Float64, []float64{x}) }

// floats is the elements of a tensor of the tape.
func floats(t testing.TB, tape *autograd.Tape, x *tensor.Tensor) []float64 {
	t.Helper()
	h, err := tape.Download(x)
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// here is file:line of the caller's line plus skip.
func here(skip int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line+skip)
}

func TestLeaves(t *testing.T) {
	tape := newTape(t)
	x, y := scalar(t, 2), scalar(t, 2)
	a := tape.Watch(x)
	if tape.Watch(x) != a || tape.Const(x) != a {
		t.Error("the same tensor gave another Var")
	}
	if tape.Watch(y) == a {
		t.Error("another tensor gave the same Var")
	}
	if !a.WantsGrad() || a.Tape() != tape || a.Tensor() != x || a.DType() != tensor.Float64 || len(a.Shape()) != 0 || a.String() != "Var () float64" {
		t.Errorf("%v", a)
	}
	c := tape.Const(scalar(t, 3))
	if c.WantsGrad() {
		t.Error("a constant wants a gradient")
	}
	g, err := tape.Backward(ops.Mul(ops.Mul(a, tape.Watch(x)), c))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); got[0] != 12 || g.Len() != 1 {
		t.Errorf("gradient %v of %d tensors", got, g.Len())
	}
	if g.Of(y) != nil || g.Of(c.Tensor()) != nil || g.Of(nil) != nil {
		t.Error("a gradient of what has none")
	}
	if (autograd.Gradients{}).Of(x) != nil || (autograd.Gradients{}).Len() != 0 {
		t.Error("no gradients are some")
	}
}

func TestLeafErrors(t *testing.T) {
	dev := newDevice(t)
	for _, c := range []struct {
		name string
		leaf func(tape *autograd.Tape) *autograd.Var
		want error
		says string
	}{
		{"watch nil", func(tape *autograd.Tape) *autograd.Var { return tape.Watch(nil) }, tensor.ErrMissing, "watch: tensor is nil"},
		{"const nil", func(tape *autograd.Tape) *autograd.Var { return tape.Const(nil) }, tensor.ErrMissing, "const: tensor is nil"},
		{"watch integers", func(tape *autograd.Tape) *autograd.Var { return tape.Watch(host(t, tensor.Int32, []float64{1}, 1)) }, tensor.ErrDType, "int32"},
		{"watch a constant", func(tape *autograd.Tape) *autograd.Var {
			x := scalar(t, 1)
			tape.Const(x)
			return tape.Watch(x)
		}, tensor.ErrValue, "constant"},
		{"zero value", func(tape *autograd.Tape) *autograd.Var { return tape.Watch(&tensor.Tensor{}) }, tensor.ErrDevice, "no device"},
		{"released", func(tape *autograd.Tape) *autograd.Var { tape.Release(); return tape.Watch(scalar(t, 1)) }, device.ErrReleased, "Release"},
	} {
		tape := autograd.NewTape(context.Background(), dev)
		v := c.leaf(tape)
		if v == nil || v.Tensor() != nil || !errors.Is(v.Err(), c.want) || !errors.Is(tape.Err(), c.want) || !strings.Contains(v.Err().Error(), c.says) {
			t.Errorf("%s: %v, %v", c.name, v, tape.Err())
		}
		if tape.Watch(scalar(t, 1)).Tensor() != nil {
			t.Errorf("%s: the tape goes on", c.name)
		}
		tape.Release()
	}
}

// Nothing panics on nil, on a zero value, or after a failure.
func TestNilIsSafe(t *testing.T) {
	var v *autograd.Var
	for name, v := range map[string]*autograd.Var{"nil": v, "zero value": {}} {
		if v.Tape() != nil || v.Tensor() != nil || v.DType() != 0 || len(v.Shape()) != 0 || v.WantsGrad() || v.Keep() != v || v.String() == "" {
			t.Errorf("%s: an accessor does not give the zero value", name)
		}
		_, e1 := v.Download()
		_, e2 := v.Float64s()
		_, e3 := v.Item()
		for _, err := range []error{v.Err(), e1, e2, e3} {
			if !errors.Is(err, tensor.ErrMissing) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var tape *autograd.Tape
	tape.Release()
	tape.Fail(errors.New("x"))
	for i, v := range []*autograd.Var{tape.Watch(scalar(t, 1)), tape.Const(nil), tape.Dead(), tape.Fails(errors.New("x")), tape.Record(nil, nil)} {
		if v == nil || v.Tensor() != nil || !errors.Is(v.Err(), tensor.ErrMissing) {
			t.Errorf("a nil tape: call %d gives %v", i, v)
		}
	}
	if tape.Err() == nil {
		t.Error("a nil tape has no error")
	}
	if _, err := tape.Backward(nil); !errors.Is(err, tensor.ErrMissing) {
		t.Errorf("backward of a nil tape: %v", err)
	}
	// A nil operand where one is needed, with and without another that has a tape.
	if got := ops.Add(nil, nil); got.Err() == nil {
		t.Error("nil + nil is no error")
	}
	if got := ops.Clamp(nil, 2, 1); got.Err() == nil {
		t.Error("a wrong clamp of nil is no error")
	}
	for name, apply := range map[string]func(x *autograd.Var) *autograd.Var{
		"add":    func(x *autograd.Var) *autograd.Var { return ops.Add(x, nil) },
		"radd":   func(x *autograd.Var) *autograd.Var { return ops.Add(nil, x) },
		"matmul": func(x *autograd.Var) *autograd.Var { return ops.MatMul(x, nil) },
		"concat": func(x *autograd.Var) *autograd.Var { return ops.Concat(0, x, nil) },
	} {
		tape := newTape(t)
		y := apply(tape.Watch(host(t, tensor.Float32, []float64{1}, 1, 1)))
		if !errors.Is(y.Err(), tensor.ErrMissing) || y.Tensor() != nil {
			t.Errorf("%s of nil: %v", name, y.Err())
		}
	}
	// A Var of no tape beside one of a tape.
	tape = newTape(t)
	if y := ops.Add(tape.Watch(scalar(t, 1)), &autograd.Var{}); !errors.Is(y.Err(), tensor.ErrMissing) {
		t.Errorf("a zero Var: %v", y.Err())
	}
	//lint:ignore SA1012 a nil context is allowed
	tape = autograd.NewTape(nil, nil)
	defer tape.Release()
	if y := ops.Add(tape.Watch(scalar(t, 1)), tape.Const(nil)); !errors.Is(y.Err(), tensor.ErrMissing) {
		t.Errorf("no device: %v", y.Err())
	}
}

func TestTwoTapesMixed(t *testing.T) {
	dev := newDevice(t)
	a, b := autograd.NewTape(context.Background(), dev), autograd.NewTape(context.Background(), dev)
	defer a.Release()
	defer b.Release()
	y := ops.Add(a.Watch(scalar(t, 1)), b.Watch(scalar(t, 2)))
	if y.Tensor() != nil || !errors.Is(a.Err(), autograd.ErrOtherTape) || !errors.Is(b.Err(), autograd.ErrOtherTape) {
		t.Errorf("%v; %v; %v", y, a.Err(), b.Err())
	}
	c := autograd.NewTape(context.Background(), dev)
	defer c.Release()
	d := autograd.NewTape(context.Background(), dev)
	defer d.Release()
	if _, err := c.Backward(ops.Square(d.Watch(scalar(t, 1)))); !errors.Is(err, autograd.ErrOtherTape) {
		t.Errorf("backward of another tape's result: %v", err)
	}
}

func TestErrorSaysWhatAndWhere(t *testing.T) {
	tape := newTape(t)
	x, y := tape.Watch(host(t, tensor.Float32, make([]float64, 6), 2, 3)), tape.Watch(host(t, tensor.Float32, make([]float64, 8), 2, 4))
	z, where := ops.MatMul(x, y), here(0)
	after := ops.Exp(ops.Add(z, x))
	err := z.Err()
	var op *autograd.OpError
	if !errors.As(err, &op) {
		t.Fatalf("%v", err)
	}
	if op.Op != "matmul" || op.Operands != "(2,3) float32, (2,4) float32" || op.Where != where {
		t.Errorf("%+v, want it at %s", op, where)
	}
	for _, part := range []string{"matmul: ", "[operands (2,3) float32, (2,4) float32]", where} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if !errors.Is(err, tensor.ErrShape) || after.Err() != err || tape.Err() != err || after.Tensor() != nil {
		t.Errorf("the first failure does not stick: %v", after.Err())
	}
	if _, e := tape.Backward(after); e != err {
		t.Errorf("backward: %v", e)
	}
	if _, e := after.Download(); e != err {
		t.Errorf("download: %v", e)
	}
	if _, e := after.Item(); e != err {
		t.Errorf("item: %v", e)
	}
	if _, e := after.Float64s(); e != err {
		t.Errorf("floats: %v", e)
	}
}

// The place is the caller's, however deep in the module the failure is found.
func TestErrorPlaceOfOtherCalls(t *testing.T) {
	for name, fail := range map[string]func(tape *autograd.Tape) (where string){
		"watch": func(tape *autograd.Tape) string { tape.Watch(nil); return here(0) },
		"backward": func(tape *autograd.Tape) string {
			_, _ = tape.Backward(tape.Watch(host(t, tensor.Float64, []float64{1, 2}, 2)))
			return here(-1)
		},
		"nested": func(tape *autograd.Tape) string {
			v := tape.Watch(host(t, tensor.Float64, []float64{1, 2}, 2))
			ops.Linear(v, v, tape.Const(host(t, tensor.Float64, []float64{1, 2, 3}, 3)))
			return here(-1)
		},
		"saved tensor": func(tape *autograd.Tape) string {
			x := host(t, tensor.Float64, []float64{1, 2}, 2)
			y := ops.Square(tape.Watch(x))
			where := here(-1)
			if err := x.SetFloat64s([]float64{3, 4}); err != nil {
				t.Fatal(err)
			}
			_, _ = tape.Backward(ops.Sum(y, ops.All()))
			return where
		},
	} {
		tape := newTape(t)
		where := fail(tape)
		var op *autograd.OpError
		if !errors.As(tape.Err(), &op) || op.Where != where {
			t.Errorf("%s: %v, want it at %s", name, tape.Err(), where)
		}
	}
}

func TestErrorOfManyOperands(t *testing.T) {
	tape := newTape(t)
	var xs []*autograd.Var
	for i := range 10 {
		xs = append(xs, tape.Watch(host(t, tensor.Float32, make([]float64, 1+i/9), 1+i/9)))
	}
	err := ops.Stack(0, xs...).Err()
	if err == nil || !strings.Contains(err.Error(), "and 4 more") || strings.Count(err.Error(), "float32") != 6 {
		t.Errorf("%v", err)
	}
}

// own is the node of a user's operation, with whatever backward the test wants.
type own struct {
	saved    *tensor.Tensor
	backward func(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor
}

func (n *own) Backward(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor {
	return n.backward(s, grad, want)
}

func double(x *autograd.Var, node autograd.Node) *autograd.Var {
	t, ok := autograd.Begin("double", x)
	if !ok {
		return t.Dead()
	}
	return t.Record(t.Binary(device.Add, x.DType(), x.Tensor(), x.Tensor()), node, x)
}

func TestNoBackward(t *testing.T) {
	var none *own
	for name, node := range map[string]autograd.Node{"nil": nil, "nil pointer": none} {
		tape := newTape(t)
		y := double(tape.Watch(scalar(t, 1)), node)
		if !errors.Is(y.Err(), autograd.ErrNoBackward) || !strings.Contains(y.Err().Error(), "double: ") || !strings.Contains(y.Err().Error(), "tape_test.go:") {
			t.Errorf("%s: %v", name, y.Err())
		}
		// Without an operand that wants a gradient none is needed.
		tape = newTape(t)
		z := double(tape.Const(scalar(t, 1)), node)
		if v, err := z.Item(); err != nil || v != 2 || z.WantsGrad() {
			t.Errorf("%s: %v, %v", name, v, err)
		}
		if _, err := tape.Backward(z); !errors.Is(err, tensor.ErrValue) {
			t.Errorf("%s: backward of a constant: %v", name, err)
		}
	}
	// A result that is nil without a failure is one.
	tape := newTape(t)
	if y := tape.Record(nil, &own{}, tape.Watch(scalar(t, 1))); !errors.Is(y.Err(), tensor.ErrMissing) {
		t.Errorf("no result: %v", y.Err())
	}
}

// A backward that breaks its contract is a failure that names the operation.
func TestWrongBackward(t *testing.T) {
	for name, c := range map[string]struct {
		grads func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor
		says  string
	}{
		"none":     {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor { return nil }, "0 gradients for 1 operands"},
		"too many": {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{g, g} }, "2 gradients for 1 operands"},
		"nil":      {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{nil} }, "no gradient for operand 0"},
		"shape": {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor {
			return []*tensor.Tensor{s.Full(tensor.Float64, 1, 3)}
		}, "gradient of operand 0 is (3) float64, want (2) float64"},
		"dtype": {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor {
			return []*tensor.Tensor{s.Full(tensor.Float32, 1, 2)}
		}, "(2) float32, want (2) float64"},
		"a failure": {func(s *device.Stream, g *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{s.Expand(g, 3)} }, "expand"},
	} {
		tape := newTape(t)
		n := &own{backward: func(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor { return c.grads(s, g) }}
		_, err := tape.Backward(ops.Sum(double(tape.Watch(host(t, tensor.Float64, []float64{1, 2}, 2)), n), ops.All()))
		var op *autograd.OpError
		if !errors.As(err, &op) || op.Op != "double" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After a failure no operation begins.
func TestNothingBeginsAfterAFailure(t *testing.T) {
	tape := newTape(t)
	x := tape.Watch(scalar(t, 1))
	if got, ok := autograd.Begin("op", x); got != tape || !ok {
		t.Errorf("%v, %v", got, ok)
	}
	tape.Fail(errors.New("lost"))
	if got, ok := autograd.Begin("op", x); got != tape || ok {
		t.Errorf("after a failure: %v, %v", got, ok)
	}
}

func TestKeepAndDrop(t *testing.T) {
	tape := newTape(t)
	x := tape.Watch(scalar(t, 3))
	kept := ops.Square(x).Keep()
	dropped := ops.Exp(kept)
	result := ops.Log(dropped)
	later := ops.Neg(result)
	if v, err := dropped.Item(); err != nil || v < 8103 {
		t.Errorf("before the backward: %v, %v", v, err)
	}
	if _, err := tape.Backward(result); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]*autograd.Var{"kept": kept, "the result": result, "a leaf": x} {
		if _, err := v.Item(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, v := range map[string]*autograd.Var{"dropped": dropped, "behind the result": later} {
		if _, err := v.Item(); !errors.Is(err, autograd.ErrDropped) || v.Tensor() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tape.Err(); err != nil {
		t.Errorf("to ask for a dropped value is a failure of the tape: %v", err)
	}
	if y := ops.Exp(dropped); !errors.Is(y.Err(), autograd.ErrDropped) {
		t.Errorf("an operation on a dropped value: %v", y.Err())
	}
}

func TestItem(t *testing.T) {
	tape := newTape(t)
	if _, err := tape.Const(host(t, tensor.Float32, []float64{1, 2}, 2)).Item(); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("%v", err)
	}
	if v, err := tape.Const(host(t, tensor.BFloat16, []float64{3}, 1, 1)).Item(); v != 3 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := tape.Const(host(t, tensor.Int64, []float64{3, 4}, 2)).Float64s(); !slices.Equal(v, []float64{3, 4}) || err != nil {
		t.Errorf("%v, %v", v, err)
	}
}
