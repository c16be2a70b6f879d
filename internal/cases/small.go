package cases

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Small is a case of a small op.
type Small struct {
	Op          string          `json:"op"`
	DType       string          `json:"dtype"`
	Args        Args            `json:"args"`
	Inputs      []Input         `json:"inputs"`
	Outputs     Answer[[]Dense] `json:"outputs"`
	GradOutputs []Dense         `json:"grad_outputs"`
	GradInputs  Answer[[]Dense] `json:"grad_inputs"` // a nil Shape where an input has no gradient
	Refused     Answer[bool]    `json:"refused"`
}

// Answer is what a case says of its result. Running the case does not need it,
// so one that cannot be read refuses nothing.
type Answer[T any] struct {
	Value T
	Err   error // why it cannot be read
}

// UnmarshalJSON never fails; see Err.
func (a *Answer[T]) UnmarshalJSON(b []byte) error {
	a.Err = json.Unmarshal(b, &a.Value)
	return nil
}

// Args are the named arguments of an op.
type Args struct {
	Axis, Axis0, Axis1    *int
	Start, End, Index     *int
	Axes                  *[]int
	Shape                 []int
	KeepDims              bool `json:"keep_dims"`
	Correction            *int
	Value, Exponent, Eps  *Number
	Min, Max, Base, Scale *Number
	Approximate, DType    string
	Reduction             string
	IgnoreIndex           *int `json:"ignore_index"`
	Causal                bool
}

// Dense is a result: its shape and its elements in row-major order.
type Dense struct {
	Shape []int    `json:"shape"`
	Data  []Number `json:"data"`
}

// Input is a tensor as a view of a storage, a number, or absent.
type Input struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Strides []int    `json:"strides"`
	Offset  int      `json:"offset"`
	Storage []Number `json:"storage"`

	number *float64
	absent bool
}

// UnmarshalJSON reads the three forms.
func (in *Input) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	switch {
	case string(b) == "null":
		in.absent = true
		return nil
	case len(b) > 0 && b[0] == '{':
		type plain Input
		return json.Unmarshal(b, (*plain)(in))
	}
	var n Number
	if err := n.UnmarshalJSON(b); err != nil {
		return err
	}
	f := float64(n)
	in.number = &f
	return nil
}

// tensor is the view that the input describes, on the host.
func (in *Input) tensor() (*tensor.Tensor, error) {
	d, err := tensor.ParseDType(in.DType)
	if err != nil {
		return nil, err
	}
	flat, err := tensor.FromFloat64s(d, floats(in.Storage), len(in.Storage))
	if err != nil {
		return nil, err
	}
	return tensor.NewStrided(flat.Memory(), d, in.Shape, in.Strides, in.Offset)
}

// SmallResult is what a small op gave.
type SmallResult struct {
	Outputs    []Dense  `json:"outputs"`
	GradInputs []*Dense `json:"grad_inputs,omitempty"`
}

// Run applies the op to the inputs as the views they are, and if the case has
// output gradients runs it backwards.
func (c *Small) Run(dev device.Device) (*SmallResult, error) {
	t := autograd.NewTape(context.Background(), dev)
	defer t.Release()
	in := make([]operand, len(c.Inputs))
	for i := range c.Inputs {
		switch x := &c.Inputs[i]; {
		case x.absent:
		case x.number != nil:
			in[i].number = x.number
		default:
			host, err := x.tensor()
			if err != nil {
				return nil, err
			}
			placed, err := place(t, host)
			if err != nil {
				return nil, err
			}
			in[i].t = placed
			if placed.DType().IsFloat() {
				in[i].v = t.Watch(placed)
			} else {
				in[i].v = t.Const(placed)
			}
		}
	}
	run, ok := table[c.Op]
	if !ok {
		return nil, invalid("op", c.Op, "a known op")
	}
	y, err := run(arguments{t, in, &c.Args})
	if err != nil {
		return nil, err
	}
	if y == nil {
		return nil, invalid("inputs", "none", "at least one tensor")
	}
	if err := y.Err(); err != nil {
		return nil, err
	}
	host, err := y.Download()
	if err != nil {
		return nil, err
	}
	out, err := dense(host)
	if err != nil {
		return nil, err
	}
	r := &SmallResult{Outputs: []Dense{out}}
	if len(c.GradOutputs) == 0 {
		return r, nil
	}
	seed, err := tensor.FromFloat64s(y.DType(), floats(c.GradOutputs[0].Data), c.GradOutputs[0].Shape...)
	if err != nil {
		return nil, err
	}
	grads, err := t.BackwardFrom(y, t.Upload(seed))
	if err != nil {
		return nil, err
	}
	r.GradInputs = make([]*Dense, len(in))
	for i, x := range in {
		if x.t == nil || !x.t.DType().IsFloat() {
			continue
		}
		g := grads.Of(x.t)
		if g == nil {
			return nil, fmt.Errorf("no gradient for input %d", i)
		}
		host, err := t.Download(g)
		if err != nil {
			return nil, err
		}
		d, err := dense(host)
		if err != nil {
			return nil, err
		}
		r.GradInputs[i] = &d
	}
	return r, nil
}

// place puts a host view on the tape's device with its strides kept.
func place(t *autograd.Tape, host *tensor.Tensor) (*tensor.Tensor, error) {
	if t.Device().Name() == tensor.CPU {
		return host, nil
	}
	n := host.Memory().Size() / max(host.DType().Size(), 1)
	flat, err := tensor.New(host.Memory(), host.DType(), n)
	if err != nil {
		return nil, err
	}
	there := t.Upload(flat)
	if err := t.Err(); err != nil {
		return nil, err
	}
	return tensor.NewStrided(there.Memory(), host.DType(), host.Shape(), host.Strides(), host.Offset())
}

func dense(host *tensor.Tensor) (Dense, error) {
	x, err := host.Float64s()
	return Dense{Shape: append([]int{}, host.Shape()...), Data: numbers(x)}, err
}

type operand struct {
	v      *autograd.Var
	t      *tensor.Tensor
	number *float64
}

type arguments struct {
	t  *autograd.Tape
	in []operand
	*Args
}

// v is the i-th tensor; nil if there is none.
func (a arguments) v(i int) *autograd.Var {
	if i < len(a.in) {
		return a.in[i].v
	}
	return nil
}

func (a arguments) all() []*autograd.Var {
	vs := make([]*autograd.Var, len(a.in))
	for i := range vs {
		vs[i] = a.v(i)
	}
	return vs
}

func (a arguments) over() ops.Axes {
	over := ops.All()
	if a.Axes != nil && len(*a.Axes) > 0 {
		over = ops.Over(*a.Axes...)
	}
	if a.KeepDims {
		over = over.KeepDims()
	}
	return over
}

type runner func(a arguments) (*autograd.Var, error)

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func unary(f func(*autograd.Var) *autograd.Var) runner {
	return func(a arguments) (*autograd.Var, error) { return f(a.v(0)), nil }
}

// binary takes a number for either operand.
func binary(f func(a, b *autograd.Var) *autograd.Var, right func(*autograd.Var, float64) *autograd.Var, left func(float64, *autograd.Var) *autograd.Var) runner {
	return func(a arguments) (*autograd.Var, error) {
		if len(a.in) != 2 {
			return nil, invalid("inputs", fmt.Sprint(len(a.in)), "2")
		}
		switch {
		case a.in[1].number != nil:
			return right(a.v(0), *a.in[1].number), nil
		case a.in[0].number != nil:
			return left(*a.in[0].number, a.v(1)), nil
		}
		return f(a.v(0), a.v(1)), nil
	}
}

func swapped(f func(*autograd.Var, float64) *autograd.Var) func(float64, *autograd.Var) *autograd.Var {
	return func(c float64, x *autograd.Var) *autograd.Var { return f(x, c) }
}

func reduction(f func(*autograd.Var, ops.Axes) *autograd.Var) runner {
	return func(a arguments) (*autograd.Var, error) { return f(a.v(0), a.over()), nil }
}

func axis(f func(x *autograd.Var, axis int) *autograd.Var) runner {
	return func(a arguments) (*autograd.Var, error) {
		if a.Axis == nil {
			return nil, invalid("args.axis", "absent", "an axis")
		}
		return f(a.v(0), *a.Axis), nil
	}
}

var table = map[string]runner{
	"add":         binary(ops.Add, ops.AddScalar, swapped(ops.AddScalar)),
	"sub":         binary(ops.Sub, ops.SubScalar, ops.SubFromScalar),
	"mul":         binary(ops.Mul, ops.MulScalar, swapped(ops.MulScalar)),
	"div":         binary(ops.Div, ops.DivScalar, ops.DivIntoScalar),
	"maximum":     binary(ops.Maximum, ops.MaximumScalar, swapped(ops.MaximumScalar)),
	"minimum":     binary(ops.Minimum, ops.MinimumScalar, swapped(ops.MinimumScalar)),
	"neg":         unary(ops.Neg),
	"abs":         unary(ops.Abs),
	"exp":         unary(ops.Exp),
	"log":         unary(ops.Log),
	"sqrt":        unary(ops.Sqrt),
	"rsqrt":       unary(ops.Rsqrt),
	"reciprocal":  unary(ops.Reciprocal),
	"square":      unary(ops.Square),
	"sin":         unary(ops.Sin),
	"cos":         unary(ops.Cos),
	"tanh":        unary(ops.Tanh),
	"erf":         unary(ops.Erf),
	"sigmoid":     unary(ops.Sigmoid),
	"relu":        unary(ops.ReLU),
	"silu":        unary(ops.SiLU),
	"sum":         reduction(ops.Sum),
	"mean":        reduction(ops.Mean),
	"max":         reduction(ops.Max),
	"min":         reduction(ops.Min),
	"logsumexp":   reduction(ops.LogSumExp),
	"softmax":     axis(ops.Softmax),
	"log_softmax": axis(ops.LogSoftmax),
	"squeeze":     axis(ops.Squeeze),
	"unsqueeze":   axis(ops.Unsqueeze),
	"var": func(a arguments) (*autograd.Var, error) {
		return ops.Var(a.v(0), a.over(), value(a.Correction, 1)), nil
	},
	"gelu": func(a arguments) (*autograd.Var, error) {
		switch a.Approximate {
		case "tanh":
			return ops.GELUTanh(a.v(0)), nil
		case "none", "":
			return ops.GELU(a.v(0)), nil
		}
		return nil, invalid("args.approximate", a.Approximate, "none or tanh")
	},
	"clamp": func(a arguments) (*autograd.Var, error) {
		return ops.Clamp(a.v(0), float64(value(a.Min, Number(negInf))), float64(value(a.Max, Number(posInf)))), nil
	},
	"pow": func(a arguments) (*autograd.Var, error) {
		if a.Exponent == nil {
			return nil, invalid("args.exponent", "absent", "a number")
		}
		return ops.Pow(a.v(0), float64(*a.Exponent)), nil
	},
	"matmul":  func(a arguments) (*autograd.Var, error) { return ops.MatMul(a.v(0), a.v(1)), nil },
	"linear":  func(a arguments) (*autograd.Var, error) { return ops.Linear(a.v(0), a.v(1), a.v(2)), nil },
	"swiglu":  func(a arguments) (*autograd.Var, error) { return ops.SwiGLU(a.v(0), a.v(1)), nil },
	"reshape": func(a arguments) (*autograd.Var, error) { return ops.Reshape(a.v(0), a.Shape...), nil },
	"expand":  func(a arguments) (*autograd.Var, error) { return ops.Expand(a.v(0), a.Shape...), nil },
	"permute": func(a arguments) (*autograd.Var, error) {
		return ops.Permute(a.v(0), value(a.Axes, nil)...), nil
	},
	"transpose": func(a arguments) (*autograd.Var, error) {
		return ops.Transpose(a.v(0), value(a.Axis0, 0), value(a.Axis1, 0)), nil
	},
	"slice": func(a arguments) (*autograd.Var, error) {
		return ops.Slice(a.v(0), value(a.Axis, 0), value(a.Start, 0), value(a.End, 0)), nil
	},
	"select": func(a arguments) (*autograd.Var, error) {
		return ops.Select(a.v(0), value(a.Axis, 0), value(a.Index, 0)), nil
	},
	"concat":    func(a arguments) (*autograd.Var, error) { return ops.Concat(value(a.Axis, 0), a.all()...), nil },
	"stack":     func(a arguments) (*autograd.Var, error) { return ops.Stack(value(a.Axis, 0), a.all()...), nil },
	"where":     func(a arguments) (*autograd.Var, error) { return ops.Where(a.v(0), a.v(1), a.v(2)), nil },
	"embedding": func(a arguments) (*autograd.Var, error) { return ops.Embedding(a.v(0), a.v(1)), nil },
	"masked_fill": func(a arguments) (*autograd.Var, error) {
		return ops.MaskedFill(a.v(0), a.v(1), float64(value(a.Value, 0))), nil
	},
	"rms_norm": func(a arguments) (*autograd.Var, error) {
		return ops.RMSNorm(a.v(0), a.v(1), float64(value(a.Eps, 1e-5))), nil
	},
	"layer_norm": func(a arguments) (*autograd.Var, error) {
		return ops.LayerNorm(a.v(0), a.v(1), a.v(2), float64(value(a.Eps, 1e-5))), nil
	},
	"rotary_embedding": func(a arguments) (*autograd.Var, error) {
		return ops.RotaryEmbedding(a.v(0), float64(value(a.Base, 10000)), value(a.Start, 0)), nil
	},
	"cross_entropy": func(a arguments) (*autograd.Var, error) {
		kinds := map[string]ops.Reduction{"mean": ops.MeanOfCounted, "sum": ops.SumOfAll, "none": ops.PerTarget, "": ops.MeanOfCounted}
		kind, ok := kinds[a.Reduction]
		if !ok {
			return nil, invalid("args.reduction", a.Reduction, "mean, sum or none")
		}
		return ops.CrossEntropy(a.v(0), a.v(1), kind, value(a.IgnoreIndex, ops.IgnoreIndex)), nil
	},
	"attention": func(a arguments) (*autograd.Var, error) {
		o := ops.AttentionOptions{Causal: a.Causal, Mask: a.v(3)}
		if a.Scale != nil {
			s := float64(*a.Scale)
			o.Scale = &s
		}
		return ops.Attention(a.v(0), a.v(1), a.v(2), o), nil
	},
	"cast": func(a arguments) (*autograd.Var, error) {
		d, err := tensor.ParseDType(a.DType)
		if err != nil {
			return nil, err
		}
		return ops.Cast(a.v(0), d), nil
	},
}
