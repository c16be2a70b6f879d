package ops

import (
	"sync"

	"github.com/lamina-go/lamina/tensor"
)

// nodes are the nodes of one type that no tape needs any more, for the next ones.
type nodes[T any] struct{ sync.Pool }

// of is a node that holds x.
func (p *nodes[T]) of(x T) *T {
	n, ok := p.Get().(*T)
	if !ok {
		n = new(T)
	}
	*n = x
	return n
}

// done takes a node back.
func (p *nodes[T]) done(n *T) {
	var none T
	*n = none
	p.Put(n)
}

// room is where a node puts its gradients.
type room struct{ gradients [3]*tensor.Tensor }

// give is the gradients as a node gives them.
func (r *room) give(gradients ...*tensor.Tensor) []*tensor.Tensor {
	return r.gradients[:copy(r.gradients[:], gradients)]
}
