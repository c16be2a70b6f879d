package autograd

import (
	"fmt"
	"sync/atomic"

	"github.com/lamina-go/lamina/tensor"
)

// Var is a tensor on a tape. Its methods are safe on nil and after a failure.
type Var struct {
	tape    *Tape
	value   *tensor.Tensor
	step    int         // index in the tape's steps; -1 for a leaf or a result without a gradient
	wants   bool        // a gradient
	failed  error       // why there is no tape
	kept    atomic.Bool // Backward must not drop the value
	dropped atomic.Bool
}

// Tape is the tape that v is on.
func (v *Var) Tape() *Tape {
	if v == nil {
		return nil
	}
	return v.tape
}

// Tensor is the value; nil after a failure or when Backward has dropped it.
func (v *Var) Tensor() *tensor.Tensor {
	if v == nil || v.dropped.Load() {
		return nil
	}
	return v.value
}

// DType is the value's element type.
func (v *Var) DType() tensor.DType {
	if v == nil {
		return 0
	}
	return v.value.DType()
}

// Shape is the value's shape.
func (v *Var) Shape() tensor.Shape {
	if v == nil {
		return nil
	}
	return v.value.Shape()
}

// Failed is the result of an operation that failed before it knew its tape.
func Failed(err error) *Var { return &Var{step: -1, failed: err} }

// WantsGrad reports whether v is watched or made from something watched.
func (v *Var) WantsGrad() bool { return v != nil && v.wants }

// Keep makes Backward leave the value in memory until Release, and returns v.
// Without it, the values of intermediate results are freed as Backward passes them.
func (v *Var) Keep() *Var {
	if v != nil {
		v.kept.Store(true)
	}
	return v
}

// Err is the failure of v's tape.
func (v *Var) Err() error {
	switch {
	case v == nil:
		return &tensor.ArgError{Op: "autograd", Arg: "var", Got: "nil", Want: "a Var", Kind: tensor.ErrMissing}
	case v.failed != nil:
		return v.failed
	case v.tape == nil:
		return &tensor.ArgError{Op: "autograd", Arg: "operands", Got: "none on a tape", Want: "at least one Var of a tape", Kind: tensor.ErrMissing}
	}
	return v.tape.Err()
}

// Download copies the value to the host.
func (v *Var) Download() (*tensor.Tensor, error) {
	if err := v.Err(); err != nil {
		return nil, err
	}
	v.tape.begins("download", v)
	defer v.tape.begins("")
	if v.dropped.Load() {
		return nil, v.tape.explain(ErrDropped)
	}
	return v.tape.Download(v.value)
}

// Float64s is the value's elements in row-major order.
func (v *Var) Float64s() ([]float64, error) {
	t, err := v.Download()
	if err != nil {
		return nil, err
	}
	return t.Float64s()
}

// Item is the only element of a value with one element.
func (v *Var) Item() (float64, error) {
	x, err := v.Float64s()
	if err != nil {
		return 0, err
	}
	if len(x) != 1 {
		v.tape.begins("item", v)
		defer v.tape.begins("")
		return 0, v.tape.explain(&tensor.ArgError{Op: "item", Arg: "value", Got: v.Shape().String(), Want: "one element", Kind: tensor.ErrShape})
	}
	return x[0], nil
}

// String describes the value, not its elements.
func (v *Var) String() string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("Var %v", v.value)
}
