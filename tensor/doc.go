// Package tensor describes data; it computes nothing.
//
// A [Tensor] is a shape, a set of strides and an offset over a [Memory]: a
// block of bytes on some device. Views (Reshape, Permute, Slice, Select,
// Expand, ...) are new descriptions of the same memory and share its version
// counter, so that whoever keeps a tensor for later can tell whether somebody
// wrote to it through any view.
//
// The element type is a value, [DType], not a type parameter. 16-bit formats
// are converted where they are loaded and stored; this package has the scalar
// conversions (rounded once, to nearest even, from float64 or float32).
//
// A *Tensor is immutable as a description and may be read by many goroutines.
// Accessors are safe to call on a nil *Tensor and give zero values.
package tensor
