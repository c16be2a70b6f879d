// Package ops is what one can do with tensors on a tape: functions on
// [autograd.Var], each with its derivative.
//
// Operands of one operation have one dtype; nothing is promoted in silence, a
// conversion is an operation ([Cast]). Shapes are broadcast where the
// documentation says so: aligned at the last axis, sizes equal or 1. Axes may
// be negative, -1 is the last. Results in 16-bit formats are computed in
// float32 and rounded once.
//
// No function panics and none returns an error: a wrong call, like any other
// failure, sticks to the tape (see autograd.Tape) and the functions after it do nothing.
package ops

import (
	"strconv"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/memory"
	"github.com/lamina-go/lamina/tensor"
)

// begin starts an operation whose operands are all required and floating-point of one dtype.
func begin(op string, in ...*autograd.Var) (*autograd.Tape, bool) {
	t, ok := autograd.Begin(op, in...)
	return t, ok && required(t, op, in...)
}

// required reports whether operands are there and floating-point of one dtype.
func required(t *autograd.Tape, op string, in ...*autograd.Var) bool {
	for i, v := range in {
		if v == nil {
			t.Fail(&tensor.ArgError{Op: op, Arg: operand(i), Got: "nil", Want: "a Var", Kind: tensor.ErrMissing})
			return false
		}
		if d := in[0].DType(); v.DType() != d || !d.IsFloat() {
			return sameDType(t, op, operand(i), d, v)
		}
	}
	return true
}

func operand(i int) string { return "operand " + strconv.Itoa(i) }

// sameDType reports whether v, which may be nil, has a floating-point dtype d.
func sameDType(t *autograd.Tape, op, arg string, d tensor.DType, v *autograd.Var) bool {
	if v == nil || v.DType() == d && d.IsFloat() {
		return true
	}
	want := d.String()
	if !d.IsFloat() {
		want = "a floating-point type"
	}
	t.Fail(&tensor.ArgError{Op: op, Arg: arg, Got: v.DType().String(), Want: want, Kind: tensor.ErrDType})
	return false
}

func fail(t *autograd.Tape, op, arg, got, want string, kind error) *autograd.Var {
	return t.Fails(&tensor.ArgError{Op: op, Arg: arg, Got: got, Want: want, Kind: kind})
}

// fits refuses a table of so many bytes, a product of sizes, that is beyond the machine.
func fits(t *autograd.Tape, op, arg string, shape tensor.Shape, sizes ...int) bool {
	if memory.Fits(sizes...) {
		return true
	}
	t.Fail(&tensor.ArgError{Op: op, Arg: arg, Got: shape.String(), Want: "a table within the machine's memory", Kind: tensor.ErrSize})
	return false
}

// stopped looks now and then, in a loop on the host, whether the tape was cancelled.
func stopped(t *autograd.Tape, i int) bool {
	if i&0xffff != 0 {
		return false
	}
	t.Fail(t.Context().Err())
	return t.Err() != nil
}

// scratch collects what lies between the kernels of a chain, to be freed at its end.
type scratch struct {
	s    *device.Stream
	temp []*tensor.Tensor
}

// keep notes a tensor that done will free, and returns it.
func (c *scratch) keep(t *tensor.Tensor) *tensor.Tensor {
	c.temp = append(c.temp, t)
	return t
}

func (c *scratch) done() { c.s.Free(c.temp...) }
