package ops

import (
	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Embedding is the rows of table (V,D) that ids, an integer tensor of any
// shape, name: ids' shape and a last axis of D. An id outside 0..V-1 is an
// error. The gradient of a row is the sum over all of its uses.
func Embedding(table, ids *autograd.Var) *autograd.Var {
	t, ok := beginMasked("embedding", "ids", ids, table)
	if !ok {
		return t.Dead()
	}
	w := table.Tensor()
	if w.Rank() != 2 {
		return fail(t, "embedding", "table", w.Shape().String(), "(V,D)", tensor.ErrRank)
	}
	if w.Dim(0) == 0 && ids.Tensor().Len() > 0 {
		return fail(t, "embedding", "ids", ids.Shape().String(), "none for an empty table", tensor.ErrIndex)
	}
	flat := t.Reshape(ids.Tensor(), ids.Tensor().Len())
	y := t.Gather(w, flat)
	var sizes [tensor.MaxRank]int
	shape := append(append(sizes[:0], ids.Shape()...), w.Dim(1))
	out := t.Reshape(y, shape...)
	return t.Record(out, embeddings.of(embedding{ids: flat, rows: w.Dim(0), width: w.Dim(1), dtype: w.DType()}), table, ids)
}

type embedding struct {
	room
	ids         *tensor.Tensor // (n)
	rows, width int
	dtype       tensor.DType
}

var embeddings nodes[embedding]

func (n *embedding) Done() { embeddings.done(n) }

func (n *embedding) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	flat := s.Reshape(g, n.ids.Len(), n.width)
	return n.give(s.ScatterAdd(n.dtype, n.rows, n.ids, flat), nil)
}
