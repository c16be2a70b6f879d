package tensor

import "github.com/lamina-go/lamina/internal/slab"

// Arena makes tensors many at a time, for what makes hundreds of them: a tensor
// of an arena keeps those beside it in memory, though not what they are views
// of once that was discarded. The zero value, and nil, are ready for use, the
// former by one goroutine at a time.
type Arena struct{ tensors slab.Of[Tensor] }

func (a *Arena) make() *Tensor {
	if a == nil {
		return new(Tensor)
	}
	return a.tensors.New()
}

// view copies the description of t; the caller changes the copy before it returns it.
func (a *Arena) view(t *Tensor) *Tensor {
	v := a.make()
	*v = *t
	return v
}

// New is [New] in the arena.
func (a *Arena) New(mem Memory, dtype DType, shape ...int) (*Tensor, error) {
	t := a.make()
	t.rank = min(len(shape), MaxRank)
	rowMajor(shape[:t.rank], &t.strides)
	if err := t.lay(mem, dtype, shape, 0); err != nil {
		return nil, err
	}
	return t, nil
}
