package nn

import (
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/tensor"
)

// Residual is how a sublayer reads what came before it.
type Residual string

const (
	PreNorm Residual = "prenorm" // the plain sum of everything so far
	Block   Residual = "block"   // Block Attention Residuals
	Full    Residual = "full"    // Attention Residuals over every sublayer: blocks of one
)

// ParseResidual finds a residual by its name; another is an error that wraps tensor.ErrValue.
func ParseResidual(name string) (Residual, error) {
	switch r := Residual(name); r {
	case PreNorm, Block, Full:
		return r, nil
	}
	return "", &tensor.ArgError{Arg: "residual", Got: fmt.Sprintf("%q", name), Want: "prenorm, block or full", Kind: tensor.ErrValue}
}

// Depth is the state of the depth axis while a net is applied ("Attention
// Residuals", arXiv 2603.15031). Its sources are b_0, the embedding, which
// stays a source of its own; the finished blocks, each the plain sum of the
// outputs of blockSize sublayers; and the partial sum of the block at hand,
// which its first sublayer does not have. For PreNorm it is the running sum.
type Depth struct {
	residual Residual
	size     int           // sublayers of a block
	stream   *autograd.Var // PreNorm: the sum so far
	blocks   []*autograd.Var
	partial  *autograd.Var
	inBlock  int // sublayers in partial
}

// NewDepth starts with the embedding. The block size counts sublayers, is used
// by Block alone and then at least 1.
func NewDepth(residual Residual, blockSize int, embedding *autograd.Var) (*Depth, error) {
	if _, err := ParseResidual(string(residual)); err != nil {
		return nil, err
	}
	if residual == Full {
		blockSize = 1
	}
	if residual == Block && blockSize < 1 {
		return nil, &tensor.ArgError{Op: "depth", Arg: "block size", Got: fmt.Sprint(blockSize), Want: "at least 1", Kind: tensor.ErrValue}
	}
	return &Depth{residual: residual, size: blockSize, stream: embedding, blocks: []*autograd.Var{embedding}}, nil
}

// Sources is how many sources a read sees now: 1 for PreNorm.
func (d *Depth) Sources() int {
	switch {
	case d == nil:
		return 0
	case d.residual == PreNorm:
		return 1
	case d.partial != nil:
		return len(d.blocks) + 1
	}
	return len(d.blocks)
}

// Read is the input of the next sublayer, before its norm: the running sum for
// PreNorm, else BlockAttnRes of the sources with the sublayer's own query and
// gain. The operator itself is in package ops/blockattnres.
func (d *Depth) Read(query, gain *autograd.Var, eps float64) *autograd.Var {
	if d == nil {
		return (*autograd.Tape)(nil).Dead()
	}
	if d.residual == PreNorm {
		return d.stream
	}
	return blockattnres.Apply(d.inputs(query, gain), blockattnres.Eps(eps))
}

// Weights is alpha, (B,T,L), of a Read with the same arguments, by the definition.
func (d *Depth) Weights(query, gain *autograd.Var, eps float64) *autograd.Var {
	return blockattnres.Decompose(d.inputs(query, gain), blockattnres.Eps(eps)).Alpha
}

func (d *Depth) inputs(query, gain *autograd.Var) blockattnres.Inputs {
	if d == nil {
		return blockattnres.Inputs{}
	}
	return blockattnres.Inputs{Blocks: d.blocks, PartialBlock: d.partial, ProjWeight: query, RMSNormGamma: gain}
}

// Add takes the output of a sublayer. A block that is full becomes a finished
// one. A nil output is a failure of the tape.
func (d *Depth) Add(out *autograd.Var) {
	if d == nil {
		return
	}
	if out == nil {
		out = d.blocks[0].Tape().Fails(&tensor.ArgError{Op: "depth", Arg: "output of a sublayer", Got: "nil", Want: "a Var", Kind: tensor.ErrMissing})
	}
	if d.residual == PreNorm {
		d.stream = ops.Add(d.stream, out)
		return
	}
	if d.partial == nil {
		d.partial = out
	} else {
		d.partial = ops.Add(d.partial, out)
	}
	if d.inBlock++; d.inBlock == d.size {
		d.blocks = append(d.blocks[:len(d.blocks):len(d.blocks)], d.partial)
		d.partial, d.inBlock = nil, 0
	}
}
