// Package nn is the parts of small transformers: parameters, layers, and the
// depth state machine by which sublayers read one another.
//
// A layer is a struct of parameters with a method that applies it to
// [autograd.Var]s of one tape. Nothing is registered anywhere: a model lists
// its parameters.
package nn

import (
	"math"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/internal/memory"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Parameter is a named tensor that is trained.
type Parameter struct {
	Name  string         // such as "layers.0.mlp.up"
	Value *tensor.Tensor // what is trained, in place
	Decay bool           // weight decay applies: matrices, not gains and queries
}

// use puts a parameter on the tape.
func (p *Parameter) use(t *autograd.Tape) *autograd.Var {
	if p == nil {
		return nil
	}
	return t.Watch(p.Value)
}

// maker draws initial values: each parameter from a stream of its own, so that
// adding one changes no other.
type maker struct {
	seed  uint64
	dtype tensor.DType
	err   error
}

func (m *maker) make(name string, decay bool, value func(i int) float64, shape ...int) *Parameter {
	if err := tensor.Shape(shape).Check(); err != nil && m.err == nil {
		m.err = err
	}
	if n := tensor.Shape(shape).Len(); m.err == nil && !memory.Fits(n, 8) {
		m.err = &tensor.ArgError{Op: "parameter", Arg: name, Got: tensor.Shape(shape).String(), Want: "one within the machine's memory", Kind: tensor.ErrSize}
	}
	if m.err != nil {
		return nil
	}
	x := make([]float64, tensor.Shape(shape).Len())
	for i := range x {
		x[i] = value(i)
	}
	v, err := tensor.FromFloat64s(m.dtype, x, shape...)
	if err != nil {
		m.err = err
	}
	return &Parameter{Name: name, Value: v, Decay: decay}
}

// normal is a matrix of normal numbers with the given deviation.
func (m *maker) normal(name string, deviation float64, shape ...int) *Parameter {
	h := uint64(14695981039346656037) // FNV-1a of the name chooses the stream
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	src := random.Source{Seed: m.seed, Stream: h}
	return m.make(name, true, func(i int) float64 { return deviation * src.Normal(uint64(i)) }, shape...)
}

// constant is a gain (1) or a query (0), without decay.
func (m *maker) constant(name string, value float64, shape ...int) *Parameter {
	return m.make(name, false, func(int) float64 { return value }, shape...)
}

// outDeviation is the deviation for matrices whose results are summed over
// depth, smaller the deeper the net (Radford et al., GPT-2, 2019).
func outDeviation(base float64, sublayers int) float64 { return base / math.Sqrt(float64(sublayers)) }
