package autograd

import (
	"reflect"
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Node is a recorded operation: a pointer to a struct whose fields are its
// arguments and what its backward needs.
type Node interface {
	// Backward gives the gradient of each operand from grad, the gradient of
	// the result, which it must not write to. Where want is false it gives nil.
	// A gradient has its operand's shape; for a 16-bit operand its dtype may be
	// float32. It may be grad itself, a saved tensor, or a view of one of them.
	// The slice want is another's when it has returned.
	// After a failure of s the result is ignored.
	Backward(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor
}

// Adder is a Node that can add gradients to sums that there are already, so that
// an operand which many operations read costs no pass over memory for each.
type Adder interface {
	Node
	// BackwardAdd is Backward where sums[i], if it is not nil, is the sum of the
	// gradients that operand i has so far, of its shape and the wide type of its
	// dtype. What is added to it in place is given as that sum itself; a
	// gradient of its own is as good. The slice sums, too, is another's later.
	BackwardAdd(s *device.Stream, grad *tensor.Tensor, want []bool, sums []*tensor.Tensor) []*tensor.Tensor
}

// Reusable is a Node whose memory can serve others: Done is called once, when
// the tape needs it no more, which is at once where no gradient is wanted. Whoever
// records one must not use it afterwards.
type Reusable interface {
	Node
	Done()
}

func done(n Node) {
	if r, ok := n.(Reusable); ok && !isNil(n) {
		r.Done()
	}
}

var (
	tensorType = reflect.TypeFor[*tensor.Tensor]()
	varType    = reflect.TypeFor[*Var]()
	// What leads to a whole tape, or to a device.
	notFollowed = map[reflect.Type]bool{reflect.TypeFor[*Tape](): true, reflect.TypeFor[*device.Stream](): true}
)

// isNil reports whether there is no node, or a nil pointer for one.
func isNil(n Node) bool {
	v := reflect.ValueOf(n)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// search finds the tensors in a node's fields, so that no node can forget to say
// what it saved. It is used again for other nodes.
type search struct {
	saved    []*tensor.Tensor
	seen     map[location]bool // pointers and maps, which may lead back
	versions []uint64          // of the saved tensors
}

var searches = sync.Pool{New: func() any { return &search{seen: map[location]bool{}} }}

// tensorsOf is valid until forget.
func (s *search) tensorsOf(n Node) []*tensor.Tensor {
	s.look(reflect.ValueOf(n))
	return s.saved
}

// forget makes it ready for another node.
func (s *search) forget() {
	clear(s.saved)
	clear(s.seen)
	s.saved, s.versions = s.saved[:0], s.versions[:0]
}

// location tells pointers apart: one to a struct and one to its first field are the same address.
type location struct {
	t reflect.Type
	p unsafe.Pointer
}

func (s *search) look(v reflect.Value) {
	if !leads(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Map:
		if v.IsNil() {
			return
		}
		switch v.Type() {
		case tensorType:
			s.add((*tensor.Tensor)(v.UnsafePointer()))
			return
		case varType:
			if x := (*Var)(v.UnsafePointer()); x.value != nil {
				s.add(x.value)
			}
			return
		}
		at := location{v.Type(), v.UnsafePointer()}
		if s.seen[at] {
			return
		}
		s.seen[at] = true
		if v.Kind() == reflect.Pointer {
			s.look(v.Elem())
			return
		}
		for it := v.MapRange(); it.Next(); {
			s.look(it.Key())
			s.look(it.Value())
		}
	case reflect.Interface:
		if !v.IsNil() {
			s.look(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			s.look(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			s.look(v.Field(i))
		}
	}
}

func (s *search) add(t *tensor.Tensor) {
	if t.Memory() != nil {
		s.saved = append(s.saved, t)
	}
}

// leads reports whether a value of a type may lead to a tensor: numbers, of
// which there may be many, do not.
func leads(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Interface, reflect.Map:
		return true
	case reflect.Pointer:
		return !notFollowed[t]
	case reflect.Slice, reflect.Array:
		return leads(t.Elem())
	}
	return false
}
