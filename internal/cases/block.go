package cases

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/tensor"
)

// Block is a case of the operator; the names are those of its document.
type Block struct {
	DType        string               `json:"dtype"`
	Blocks       []*Nested            `json:"blocks"` // N of [B][T][D]
	PartialBlock *Nested              `json:"partial_block"`
	ProjWeight   *Nested              `json:"proj_weight"`
	RMSNormGamma *Nested              `json:"rmsnorm_gamma"`
	Scale        Number               `json:"scale"`
	Eps          Number               `json:"rmsnorm_eps"`
	RMSNorm      bool                 `json:"enable_rmsnorm"`
	GradH        *Nested              `json:"grad_h"`
	Want         Answer[*BlockResult] `json:"want"`
}

// BlockResult is the outputs and gradients of the operator; nil where there is none.
type BlockResult struct {
	Output           *Nested  `json:"output"`
	RMSCache         *Nested  `json:"rms_cache"`
	AlphaCache       *Nested  `json:"alpha_cache"`
	GradBlocks       []Nested `json:"grad_blocks"` // nil, as the other gradients, without a grad_h
	GradPartialBlock *Nested  `json:"grad_partial_block"`
	GradProjWeight   *Nested  `json:"grad_proj_weight"`
	GradRMSNormGamma *Nested  `json:"grad_rmsnorm_gamma"`
}

// MarshalJSON leaves the gradients out if there are none.
func (r *BlockResult) MarshalJSON() ([]byte, error) {
	if r.GradBlocks == nil {
		return json.Marshal(map[string]*Nested{"output": r.Output, "rms_cache": r.RMSCache, "alpha_cache": r.AlphaCache})
	}
	type plain BlockResult
	return json.Marshal((*plain)(r))
}

// Nested is an array of numbers of any depth.
type Nested struct {
	Shape []int
	Data  []float64
}

// UnmarshalJSON reads nested lists; they must not be ragged.
func (n *Nested) UnmarshalJSON(b []byte) error {
	shape, data, err := readNested(b, 0)
	n.Shape, n.Data = shape, data
	return err
}

func readNested(b []byte, depth int) (shape []int, data []float64, err error) {
	if depth > tensor.MaxRank {
		return nil, nil, fmt.Errorf("lists nested deeper than %d", tensor.MaxRank)
	}
	if len(b) == 0 || b[0] != '[' {
		var n Number
		err := n.UnmarshalJSON(b)
		return []int{}, []float64{float64(n)}, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, nil, err
	}
	shape = []int{len(list)}
	for i, item := range list {
		s, d, err := readNested(item, depth+1)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			shape = append(shape, s...)
		} else if !tensor.Shape(s).Equal(shape[1:]) {
			return nil, nil, fmt.Errorf("a ragged list: %v beside %v", s, shape[1:])
		}
		data = append(data, d...)
	}
	return shape, data, nil
}

// MarshalJSON writes nested lists.
func (n Nested) MarshalJSON() ([]byte, error) {
	if len(n.Shape) == 0 {
		return Number(n.Data[0]).MarshalJSON()
	}
	b := []byte{'['}
	step := tensor.Shape(n.Shape[1:]).Len()
	for i := range n.Shape[0] {
		if i > 0 {
			b = append(b, ',')
		}
		part, err := Nested{Shape: n.Shape[1:], Data: n.Data[i*step : (i+1)*step]}.MarshalJSON()
		if err != nil {
			return nil, err
		}
		b = append(b, part...)
	}
	return append(b, ']'), nil
}

func (n *Nested) tensor(d tensor.DType) (*tensor.Tensor, error) {
	if n == nil {
		return nil, nil
	}
	shape := n.Shape
	return tensor.FromFloat64s(d, n.Data, shape...)
}

// completeShapes gives empty lists the axes that nested lists cannot show: [] is
// (0,0,D) and [[],[]] is (2,0,D), with the D of proj_weight.
func (c *Block) completeShapes() {
	if c.ProjWeight == nil || len(c.ProjWeight.Shape) == 0 {
		return
	}
	d := c.ProjWeight.Shape[len(c.ProjWeight.Shape)-1]
	for _, n := range append([]*Nested{c.PartialBlock, c.GradH}, c.Blocks...) {
		if n == nil || len(n.Data) > 0 {
			continue
		}
		switch len(n.Shape) {
		case 1:
			n.Shape = []int{0, 0, d}
		case 2:
			n.Shape = []int{n.Shape[0], 0, d}
		}
	}
}

// Run runs the case. On the fused path the operator's two functions run with
// caches in and out; on the decomposed path the definition runs in float64 and
// results are rounded to the dtype once, gradients by automatic differentiation.
func (c *Block) Run(dev device.Device, path string) (*BlockResult, error) {
	d, err := tensor.ParseDType(c.DType)
	if err != nil {
		return nil, err
	}
	s := device.NewStream(context.Background(), dev)
	defer s.Release()
	place := func(n *Nested) *tensor.Tensor {
		host, err := n.tensor(d)
		if err != nil {
			s.Fail(err)
		}
		if host == nil || err != nil {
			return nil
		}
		return s.Upload(host)
	}
	c.completeShapes()
	var in blockattnres.Tensors
	for i := range c.Blocks {
		in.Blocks = append(in.Blocks, place(c.Blocks[i]))
	}
	in.PartialBlock, in.ProjWeight, in.RMSNormGamma = place(c.PartialBlock), place(c.ProjWeight), place(c.RMSNormGamma)
	gradH := place(c.GradH)
	if err := s.Err(); err != nil {
		return nil, err
	}
	opts := []blockattnres.Option{blockattnres.Scale(float64(c.Scale)), blockattnres.Eps(float64(c.Eps))}
	if !c.RMSNorm {
		opts = append(opts, blockattnres.WithoutRMSNorm())
	}
	if path == "decomposed" {
		return c.decomposed(dev, d, in, gradH, opts)
	}
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: c.RMSNorm, Alpha: true}, opts...)
	if err != nil {
		return nil, err
	}
	get := getter(s)
	r := &BlockResult{Output: get(out.H), RMSCache: get(out.RMS), AlphaCache: get(out.Alpha)}
	if gradH != nil {
		g, err := blockattnres.Backward(s, gradH, in, out.Alpha, out.RMS, opts...)
		if err != nil {
			return nil, err
		}
		r.GradBlocks = []Nested{}
		for _, b := range g.Blocks {
			if n := get(b); n != nil {
				r.GradBlocks = append(r.GradBlocks, *n)
			}
		}
		r.GradPartialBlock, r.GradProjWeight, r.GradRMSNormGamma = get(g.PartialBlock), get(g.ProjWeight), get(g.RMSNormGamma)
	}
	return r, s.Err()
}

// getter downloads tensors; a failure sticks to the stream.
func getter(s *device.Stream) func(*tensor.Tensor) *Nested {
	return func(t *tensor.Tensor) *Nested {
		if t == nil {
			return nil
		}
		host, err := s.Download(t)
		if err != nil {
			return nil
		}
		data, err := host.Float64s()
		s.Fail(err)
		return &Nested{Shape: append([]int{}, t.Shape()...), Data: data}
	}
}

func (c *Block) decomposed(dev device.Device, d tensor.DType, in blockattnres.Tensors, gradH *tensor.Tensor, opts []blockattnres.Option) (*BlockResult, error) {
	t := autograd.NewTape(context.Background(), dev)
	defer t.Release()
	watch := func(x *tensor.Tensor) *autograd.Var {
		if x == nil {
			return nil
		}
		return t.Watch(x)
	}
	vars := blockattnres.Inputs{PartialBlock: watch(in.PartialBlock), ProjWeight: watch(in.ProjWeight), RMSNormGamma: watch(in.RMSNormGamma)}
	for _, b := range in.Blocks {
		vars.Blocks = append(vars.Blocks, watch(b))
	}
	p := blockattnres.Decompose(vars.Cast(tensor.Float64), opts...)
	h := ops.Cast(p.H, d)
	cache := func(v *autograd.Var) *tensor.Tensor {
		if v == nil || v.Err() != nil {
			return nil
		}
		return t.Copy(d.Wide(), v.Tensor())
	}
	get := getter(t.Stream)
	r := &BlockResult{Output: get(h.Tensor()), RMSCache: get(cache(p.RMS)), AlphaCache: get(cache(p.Alpha))}
	if gradH != nil {
		if err := t.Err(); err != nil {
			return nil, err
		}
		if !gradH.Shape().Equal(h.Shape()) {
			return nil, &tensor.ArgError{Op: "blockattnres backward", Arg: "grad_h", Got: gradH.Shape().String(), Want: h.Shape().String(), Kind: tensor.ErrShape}
		}
		g, err := t.BackwardFrom(h, gradH)
		if err != nil {
			return nil, err
		}
		r.GradBlocks = []Nested{}
		for _, b := range in.Blocks {
			if n := get(g.Of(b)); n != nil {
				r.GradBlocks = append(r.GradBlocks, *n)
			}
		}
		width := in.Blocks[0].Dim(2)
		flat := func(x *tensor.Tensor) *Nested { // weights may be (1,D), their gradients are (D)
			return get(t.View(func() (*tensor.Tensor, error) { return g.Of(x).Reshape(width) }))
		}
		r.GradProjWeight = flat(in.ProjWeight)
		if in.PartialBlock != nil {
			r.GradPartialBlock = get(g.Of(in.PartialBlock))
		}
		if c.RMSNorm {
			r.GradRMSNormGamma = flat(in.RMSNormGamma)
		}
	}
	return r, t.Err()
}
