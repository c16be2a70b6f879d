package autograd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/slab"
	"github.com/lamina-go/lamina/tensor"
)

// Failures of a tape, for errors.Is.
var (
	ErrOtherTape     = errors.New("operands belong to different tapes")
	ErrBackwardTwice = errors.New("backward was already called on this tape")
	ErrNoBackward    = errors.New("the operation has no backward")
	ErrNotScalar     = errors.New("backward of a non-scalar needs a seed gradient")
	ErrModified      = errors.New("a tensor that backward needs was written after it was saved")
	ErrDropped       = errors.New("the tensor was dropped by Backward; Keep it")
)

// OpError is the failure of an operation on a tape.
type OpError struct {
	Op       string // the operation, such as "matmul"
	Operands string // shapes and dtypes
	Where    string // file:line of the caller
	Err      error  // what went wrong
}

// Error is the message: operation, what went wrong, operands and place.
func (e *OpError) Error() string {
	s := "failed"
	if e.Err != nil {
		s = e.Err.Error()
	}
	if e.Op != "" && !strings.HasPrefix(s, e.Op+":") {
		s = e.Op + ": " + s
	}
	if e.Operands != "" {
		s += " [operands " + e.Operands + "]"
	}
	if e.Where != "" {
		s += " (" + e.Where + ")"
	}
	return s
}

// Unwrap is Err, for errors.Is and errors.As.
func (e *OpError) Unwrap() error { return e.Err }

// Tape records the operations of one step on one device. It belongs to one
// goroutine; use by two at once is a failure. Its stream's methods compute
// without recording.
type Tape struct {
	*device.Stream
	dead Var // what operations return after a failure

	mu       sync.Mutex // held for moments only, never while the stream is called
	memory   *memory    // nil after Release
	steps    *[]step
	backward bool // Backward was called
	op       string
	operands []*Var
}

// memory is what a tape is made of, and leaves to those after it: what of the
// slabs was taken is never used again.
type memory struct {
	leaves   map[*tensor.Tensor]*Var
	operands []*Var // see Tape
	vars     slab.Of[Var]
	ins      slab.Of[*Var]
	saved    slab.Of[*tensor.Tensor]
	versions slab.Of[uint64]
}

var (
	memories  = sync.Pool{New: func() any { return &memory{leaves: map[*tensor.Tensor]*Var{}} }}
	stepLists = sync.Pool{New: func() any { return new([]step) }}
)

// again empties a list of steps for another tape.
func again(steps *[]step) {
	if steps != nil {
		for _, st := range *steps {
			done(st.node)
		}
		clear(*steps)
		*steps = (*steps)[:0]
		stepLists.Put(steps)
	}
}

// step is one recorded operation.
type step struct {
	op      string
	node    Node
	in      []*Var
	out     *Var
	saved   []*tensor.Tensor
	version []uint64 // of the saved tensors when they were saved
	pcs     [callDepth]uintptr
}

const callDepth = 12

// NewTape starts a step on dev. Cancelling ctx stops it within a kernel; a nil
// ctx is context.Background(). Release must be called when the step is done.
func NewTape(ctx context.Context, dev device.Device) *Tape {
	m := memories.Get().(*memory)
	t := &Tape{Stream: device.NewStream(ctx, dev), memory: m, operands: m.operands, steps: stepLists.Get().(*[]step)}
	t.dead.tape, t.dead.step = t, -1
	t.OnFailure(t.explain)
	return t
}

// explain adds operation, operands and the caller's place to a failure.
func (t *Tape) explain(err error) error {
	var known *OpError
	if errors.As(err, &known) {
		return err
	}
	var pcs [2 * callDepth]uintptr
	n := runtime.Callers(3, pcs[:])
	op, operands := t.current()
	return &OpError{Op: op, Operands: operands, Where: place(pcs[:n]), Err: err}
}

// begins notes the operation that a failure from now on belongs to.
func (t *Tape) begins(op string, operands ...*Var) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.op, t.operands = op, append(t.operands[:0], operands...)
}

// current is the operation and its operands, for an error message.
func (t *Tape) current() (op, operands string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.op, describe(t.operands)
}

// Err is the first failure, or nil.
func (t *Tape) Err() error {
	if t == nil {
		return &tensor.ArgError{Op: "autograd", Arg: "tape", Got: "nil", Want: "a tape", Kind: tensor.ErrMissing}
	}
	return t.Stream.Err()
}

// Fail makes err the tape's failure unless it has one already.
func (t *Tape) Fail(err error) {
	if t != nil {
		t.Stream.Fail(err)
	}
}

func describe(vs []*Var) string {
	var parts []string
	for i, v := range vs {
		if i == 6 {
			parts = append(parts, fmt.Sprintf("and %d more", len(vs)-i))
			break
		}
		if v != nil && v.value != nil {
			parts = append(parts, v.value.String())
		}
	}
	return strings.Join(parts, ", ")
}

// root is the module's folder as the compiler names it.
var root = func() string {
	_, file, _, _ := runtime.Caller(0)
	return strings.TrimSuffix(file, "autograd/tape.go")
}()

// place is the first caller outside the packages that operations are made of.
// Files tell, and not functions: a closure that is inlined takes its caller's name.
func place(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, "runtime.")
		if rest, ok := strings.CutPrefix(f.File, root); ok && root != "" {
			switch path.Dir(rest) {
			case "tensor", "device", "autograd", "autograd/gradcheck", "ops", "ops/blockattnres", "nn", "optim":
				inside = !strings.HasSuffix(f.File, "_test.go")
			}
		}
		if f.Function != "" && !inside {
			return filepath.Base(f.File) + ":" + fmt.Sprint(f.Line)
		}
		if !more {
			return ""
		}
	}
}

// Watch puts a floating-point tensor on the tape as a leaf that gets a
// gradient. The same *tensor.Tensor gives the same Var.
func (t *Tape) Watch(x *tensor.Tensor) *Var { return t.leaf(x, true) }

// Const puts a tensor on the tape as a leaf without a gradient. A tensor that
// was watched stays watched.
func (t *Tape) Const(x *tensor.Tensor) *Var { return t.leaf(x, false) }

func (t *Tape) leaf(x *tensor.Tensor, wants bool) *Var {
	if t == nil || t.Err() != nil {
		return t.Dead()
	}
	if wants {
		t.begins("watch")
	} else {
		t.begins("const")
	}
	if x == nil {
		return t.Fails(&tensor.ArgError{Arg: "tensor", Got: "nil", Want: "a tensor", Kind: tensor.ErrMissing})
	}
	if x.Device() != t.Device().Name() {
		return t.Fails(&tensor.ArgError{Arg: "tensor", Got: "on " + x.Device().String(), Want: "on " + t.Device().Name().String(), Kind: tensor.ErrDevice})
	}
	if wants && !x.DType().IsFloat() {
		return t.Fails(&tensor.ArgError{Arg: "tensor", Got: x.DType().String(), Want: "a floating-point type", Kind: tensor.ErrDType})
	}
	if h, ok := x.Memory().(interface{ Discarded() bool }); ok && h.Discarded() {
		return t.Fails(&tensor.ArgError{Arg: "tensor", Got: x.String() + " in memory that was given back", Want: "one that is still held", Kind: tensor.ErrFreed})
	}
	var v *Var
	fresh := false
	t.Run(func(context.Context, device.Device) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.memory == nil {
			return device.ErrReleased
		}
		if v = t.memory.leaves[x]; v == nil {
			v = t.memory.vars.New()
			v.tape, v.value, v.step, v.wants = t, x, -1, wants
			t.memory.leaves[x], fresh = v, true
		} else if wants && !v.wants {
			return &tensor.ArgError{Arg: "tensor", Got: "a constant of this tape", Want: "Watch before Const", Kind: tensor.ErrValue}
		}
		return nil
	})
	if v == nil || t.Err() != nil {
		return &t.dead
	}
	if fresh {
		t.Retain(x) // it may be a result of this tape, which Backward would drop
	}
	return v
}

// Begin is how an operation starts: it notes the name and the operands for
// error messages and reports whether the operation may go on. The tape is that
// of the operands; nil operands are absent optional ones. After a false the
// operation returns t.Dead().
func Begin(op string, in ...*Var) (t *Tape, ok bool) {
	for _, v := range in {
		if v != nil && t == nil {
			t = v.tape
		}
	}
	if t == nil || t.Err() != nil {
		return t, false
	}
	t.begins(op, in...)
	for i, v := range in {
		if v == nil {
			continue
		}
		if v.tape == nil {
			t.Fail(&tensor.ArgError{Op: op, Arg: fmt.Sprintf("operand %d", i), Got: "the result of a call that had no tape", Want: "a Var of this tape", Kind: tensor.ErrMissing})
			return t, false
		}
		if v.tape != t {
			t.Fail(ErrOtherTape)
			v.tape.begins(op, in...)
			v.tape.Fail(ErrOtherTape)
			return t, false
		}
		if v.dropped.Load() {
			t.Fail(ErrDropped)
			return t, false
		}
	}
	return t, true
}

// Dead is the Var that operations return after a failure. It is never nil, so
// that no operation takes it for an optional operand that is absent.
func (t *Tape) Dead() *Var {
	if t == nil {
		return &tapeless
	}
	return &t.dead
}

// tapeless is the result of an operation without any operand on a tape.
var tapeless = Var{step: -1}

// Fails makes err the tape's failure and returns Dead.
func (t *Tape) Fails(err error) *Var {
	t.Fail(err)
	return t.Dead()
}

// Record puts the result of an operation on the tape. out was made by the
// tape's stream, or is a view of an operand. The node is kept if some operand
// wants a gradient; then a nil node is an error (ErrNoBackward). Every
// *tensor.Tensor in the fields of the node, also behind structs, slices, arrays,
// maps, pointers and interfaces among them, counts as saved for the backward: if it is written before the
// backward, Backward fails with ErrModified, and if the node made it, it is
// freed as soon as the node has run. in may hold nils.
func (t *Tape) Record(out *tensor.Tensor, n Node, in ...*Var) *Var {
	if t == nil || t.Err() != nil {
		return t.Dead()
	}
	if out == nil {
		return t.Fails(&tensor.ArgError{Arg: "result", Got: "nil", Want: "a tensor", Kind: tensor.ErrMissing})
	}
	for _, v := range in {
		if v != nil && v.value != nil && v.value.Memory() == out.Memory() {
			t.Retain(out)
			break
		}
	}
	wants := false
	for _, v := range in {
		wants = wants || v != nil && v.wants
	}
	if wants && isNil(n) {
		return t.Fails(ErrNoBackward)
	}
	var pcs [callDepth]uintptr
	if wants {
		runtime.Callers(2, pcs[:])
	}
	var v *Var
	ok := t.Run(func(context.Context, device.Device) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.memory == nil { // by another goroutine
			return device.ErrReleased
		}
		v = t.memory.vars.New()
		v.tape, v.value, v.step, v.wants = t, out, -1, wants
		if !wants {
			return nil
		}
		if t.backward {
			return ErrBackwardTwice
		}
		v.step = len(*t.steps)
		*t.steps = append(*t.steps, t.stepOf(n, in, v, &pcs))
		return nil
	})
	t.begins("") // what fails outside an operation has no operation's name
	if !ok {
		return &t.dead
	}
	if !wants {
		done(n)
	}
	return v
}

func (t *Tape) stepOf(n Node, in []*Var, out *Var, pcs *[callDepth]uintptr) step {
	m := t.memory
	st := step{op: t.op, node: n, in: m.ins.Copy(in), out: out, pcs: *pcs}
	s := searches.Get().(*search)
	defer searches.Put(s)
	st.saved = m.saved.Copy(s.tensorsOf(n))
	for _, x := range st.saved {
		s.versions = append(s.versions, x.Memory().Version())
	}
	st.version = m.versions.Copy(s.versions)
	s.forget()
	return st
}

// Release frees what the step made. Tensors of the tape, and its gradients,
// must not be used afterwards; a Var that is kept keeps the descriptions of its
// neighbours with it. It is safe to call more than once.
func (t *Tape) Release() {
	if t == nil {
		return
	}
	t.Stream.Release()
	t.mu.Lock()
	defer t.mu.Unlock()
	again(t.steps)
	if t.memory != nil {
		clear(t.memory.leaves)
		clear(t.operands)
		t.memory.operands = t.operands[:0]
		memories.Put(t.memory)
	}
	t.steps, t.memory, t.operands = nil, nil, nil
}
