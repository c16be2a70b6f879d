package autograd

import (
	"reflect"

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
	// After a failure of s the result is ignored.
	Backward(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor
}

var tensorType = reflect.TypeFor[*tensor.Tensor]()

// isNil reports whether there is no node, or a nil pointer for one.
func isNil(n Node) bool {
	v := reflect.ValueOf(n)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// savedTensors finds the tensors in a node's fields, so that no node can
// forget to say what it saved.
func savedTensors(n Node) []*tensor.Tensor {
	v := reflect.ValueOf(n)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return appendSaved(nil, v)
}

func appendSaved(saved []*tensor.Tensor, v reflect.Value) []*tensor.Tensor {
	switch k := v.Kind(); {
	case v.Type() == tensorType:
		if p := (*tensor.Tensor)(v.UnsafePointer()); p.Memory() != nil {
			saved = append(saved, p)
		}
	case k == reflect.Slice || k == reflect.Array:
		if e := v.Type().Elem(); e != tensorType && e.Kind() != reflect.Struct && e.Kind() != reflect.Slice && e.Kind() != reflect.Array {
			return saved // numbers, of which there may be many
		}
		for i := range v.Len() {
			saved = appendSaved(saved, v.Index(i))
		}
	case k == reflect.Struct:
		for i := range v.NumField() {
			saved = appendSaved(saved, v.Field(i))
		}
	}
	return saved
}
