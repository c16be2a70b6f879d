package autograd

import (
	"context"
	"fmt"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Gradients are the result of a Backward. Each has memory of its own, which is
// the tape's: they are gone with its Release.
type Gradients struct {
	of map[*tensor.Tensor]*tensor.Tensor
}

// Of is the gradient of a watched tensor, of its shape and dtype; nil if the
// result does not depend on it or it was not watched.
func (g Gradients) Of(x *tensor.Tensor) *tensor.Tensor { return g.of[x] }

// Len is the number of watched tensors that have a gradient.
func (g Gradients) Len() int { return len(g.of) }

// Backward gives the gradients of a result with one element by every watched
// tensor. It can be called once; it drops each step's saved tensors as soon as
// they are used, and the values of intermediate results that were not kept.
func (t *Tape) Backward(result *Var) (Gradients, error) { return t.BackwardFrom(result, nil) }

// BackwardFrom is Backward from a result of any shape; seed is the gradient of
// that result, of its shape and dtype. A nil seed is 1, for one element only (ErrNotScalar).
func (t *Tape) BackwardFrom(result *Var, seed *tensor.Tensor) (Gradients, error) {
	if t == nil {
		return Gradients{}, &tensor.ArgError{Op: "backward", Arg: "tape", Got: "nil", Want: "a tape", Kind: tensor.ErrMissing}
	}
	if err := t.Err(); err != nil {
		return Gradients{}, err
	}
	t.begins("backward", result)
	var steps *[]step
	t.Run(func(context.Context, device.Device) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err := t.checkRoot(result, seed); err != nil {
			return err
		}
		if t.steps == nil { // by another goroutine
			return device.ErrReleased
		}
		steps, t.steps, t.backward = t.steps, nil, true
		return nil
	})
	if err := t.Err(); err != nil {
		return Gradients{}, err
	}
	result.Keep()
	p := passes.Get().(*pass)
	p.t = t
	defer p.end()
	if seed == nil {
		seed = t.Full(result.DType(), 1, result.Shape()...)
	} else {
		t.Retain(seed) // the caller's
	}
	p.of[result] = seed
	for i := len(*steps) - 1; i >= 0 && t.Err() == nil; i-- {
		p.step(&(*steps)[i], i <= result.step)
		done((*steps)[i].node)
		(*steps)[i] = step{}
	}
	again(steps)
	out := Gradients{of: make(map[*tensor.Tensor]*tensor.Tensor, len(p.of))}
	t.begins("backward")
	for v, g := range p.of {
		if v.step < 0 && v.wants {
			out.of[v.value] = p.alone(p.rounded(v, g))
		}
	}
	if err := t.Err(); err != nil {
		return Gradients{}, err
	}
	return out, nil
}

func (t *Tape) checkRoot(result *Var, seed *tensor.Tensor) error {
	switch {
	case t.backward:
		return ErrBackwardTwice
	case result == nil:
		return &tensor.ArgError{Arg: "result", Got: "nil", Want: "a Var", Kind: tensor.ErrMissing}
	case result.tape != t:
		return ErrOtherTape
	case !result.wants:
		return &tensor.ArgError{Arg: "result", Got: "made from constants alone", Want: "one that depends on a watched tensor", Kind: tensor.ErrValue}
	case seed == nil && result.value.Len() != 1:
		return ErrNotScalar
	case seed != nil && !seed.Shape().Equal(result.Shape()):
		return &tensor.ArgError{Arg: "seed", Got: seed.Shape().String(), Want: result.Shape().String(), Kind: tensor.ErrShape}
	case seed != nil && seed.DType() != result.DType():
		return &tensor.ArgError{Arg: "seed", Got: seed.DType().String(), Want: result.DType().String(), Kind: tensor.ErrDType}
	case seed != nil && seed.Device() != result.value.Device():
		return &tensor.ArgError{Arg: "seed", Got: "on " + seed.Device().String(), Want: "on " + result.value.Device().String(), Kind: tensor.ErrDevice}
	}
	return nil
}

// pass is a backward under way. Its memory is used again by others.
type pass struct {
	t     *Tape
	of    map[*Var]*tensor.Tensor // gradients so far; those of 16-bit Vars with several uses in float32
	owned map[*Var]bool           // the gradient is the pass's own accumulator

	want []bool           // of the operands of a step
	sums []*tensor.Tensor // of them
	seen map[tensor.Memory]bool
}

var passes = sync.Pool{New: func() any {
	return &pass{of: map[*Var]*tensor.Tensor{}, owned: map[*Var]bool{}, seen: map[tensor.Memory]bool{}}
}}

func (p *pass) end() {
	clear(p.of)
	clear(p.owned)
	clear(p.seen)
	clear(p.sums)
	p.t = nil
	passes.Put(p)
}

// step runs one node backwards and frees what only it needed.
func (p *pass) step(st *step, below bool) {
	t := p.t
	t.begins(st.op, st.in...)
	g := p.of[st.out]
	if g != nil && below {
		for i, s := range st.saved {
			if now := s.Memory().Version(); now != st.version[i] {
				t.Fail(&OpError{Op: st.op, Operands: describe(st.in), Where: place(st.pcs[:]),
					Err: fmt.Errorf("%w: saved tensor %d, %v, was at version %d and is now at %d", ErrModified, i, s, st.version[i], now)})
				return
			}
		}
		delete(p.of, st.out)
		g = p.rounded(st.out, g)
		p.want = p.want[:0]
		for _, v := range st.in {
			p.want = append(p.want, v != nil && v.wants)
		}
		grads := p.backward(st, g, p.want)
		if t.Err() != nil {
			return
		}
		p.collect(st, grads, p.want, g)
	}
	p.drop(st)
}

// backward runs the node. Gradients that it has added to their sums are then no
// longer wanted, and nil.
func (p *pass) backward(st *step, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	var grads, sums []*tensor.Tensor
	if n, ok := st.node.(Adder); ok {
		p.sums = p.sums[:0]
		for i, v := range st.in {
			var sum *tensor.Tensor
			if want[i] && p.of[v] != nil && once(st.in, v) {
				sum = p.own(v)
			}
			p.sums = append(p.sums, sum)
		}
		sums = p.sums
		if p.t.Err() != nil {
			return nil
		}
		grads = n.BackwardAdd(p.t.Stream, g, want, sums)
	} else {
		grads = st.node.Backward(p.t.Stream, g, want)
	}
	if len(grads) != len(st.in) {
		p.t.Fail(fmt.Errorf("its backward gave %d gradients for %d operands", len(grads), len(st.in)))
		return nil
	}
	for i, sum := range sums {
		if sum != nil && grads[i] == sum {
			grads[i], want[i] = nil, false
		}
	}
	return grads
}

// once reports whether v is among vs no more than once.
func once(vs []*Var, v *Var) bool {
	n := 0
	for _, x := range vs {
		if x == v {
			n++
		}
	}
	return n == 1
}

// own makes v's gradient an accumulator of the pass's own, in the wide type.
func (p *pass) own(v *Var) *tensor.Tensor {
	g, wide := p.of[v], v.DType().Wide()
	if !p.owned[v] && !(g.DType() == wide && p.t.Sole(g) && !g.HasOverlap()) {
		sum := p.t.Copy(wide, g)
		p.t.Free(g)
		p.of[v] = sum
	}
	p.owned[v] = true
	return p.of[v]
}

// collect adds a node's gradients to what its operands have. Each holder of a
// gradient's memory counts: grad itself, a saved tensor and a tensor given twice may be shared.
func (p *pass) collect(st *step, grads []*tensor.Tensor, want []bool, grad *tensor.Tensor) {
	t := p.t
	seen := p.seen
	clear(seen)
	seen[grad.Memory()] = true
	for _, s := range st.saved {
		seen[s.Memory()] = true // drop frees it
	}
	for i, g := range grads { // before the first of them is added and freed
		switch {
		case g == nil && want[i]:
			t.Fail(fmt.Errorf("its backward gave no gradient for operand %d", i))
			return
		case g == nil:
		case seen[g.Memory()]:
			t.Retain(g)
		default:
			seen[g.Memory()] = true
		}
	}
	for i, g := range grads {
		if g == nil {
			continue
		}
		if !want[i] {
			t.Free(g)
			continue
		}
		v := st.in[i]
		if !g.Shape().Equal(v.Shape()) || g.DType() != v.DType() && g.DType() != v.DType().Wide() {
			t.Fail(&tensor.ArgError{Arg: fmt.Sprintf("gradient of operand %d", i), Got: g.String(), Want: v.value.String(), Kind: tensor.ErrShape})
			return
		}
		p.add(v, g)
	}
	t.Free(grad)
}

// add adds g, which it then owns, to v's gradient: in float32 for 16-bit
// formats, in place once there is an accumulator.
func (p *pass) add(v *Var, g *tensor.Tensor) {
	t := p.t
	sum := p.of[v]
	switch {
	case sum == nil:
		p.of[v] = g
		return
	case p.owned[v] || sum.DType() == v.DType().Wide() && t.Sole(sum) && !sum.HasOverlap():
		p.owned[v] = true
		t.Accumulate(sum, g)
	default:
		p.of[v] = t.Binary(device.Add, v.DType().Wide(), sum, g)
		p.owned[v] = true
		t.Free(sum)
	}
	t.Free(g)
}

// alone is g in memory that nothing else holds, each element once.
func (p *pass) alone(g *tensor.Tensor) *tensor.Tensor {
	if p.t.Err() != nil || p.t.Sole(g) && !g.HasOverlap() {
		return g
	}
	own := p.t.Copy(g.DType(), g)
	p.t.Free(g)
	return own
}

// rounded is a gradient in its Var's dtype.
func (p *pass) rounded(v *Var, g *tensor.Tensor) *tensor.Tensor {
	if g.DType() == v.DType() || p.t.Err() != nil {
		return g
	}
	r := p.t.Copy(v.DType(), g)
	p.t.Free(g)
	return r
}

// drop frees what the node saved for itself and the result's value.
func (p *pass) drop(st *step) {
	t := p.t
	freed := p.seen
	clear(freed)
	if st.out.value != nil {
		freed[st.out.value.Memory()] = true
	}
	for _, v := range st.in {
		if v != nil && v.value != nil {
			freed[v.value.Memory()] = true
		}
	}
	for _, s := range st.saved {
		if !freed[s.Memory()] {
			freed[s.Memory()] = true
			t.Free(s)
		}
	}
	if !st.out.kept.Load() {
		st.out.dropped.Store(true)
		t.Free(st.out.value)
	}
}
