// Package slab makes small values many at a time, for what a step makes hundreds
// of: an allocation of each alone would cost more than many a kernel.
package slab

import "unsafe"

// most bounds the bytes of one allocation: its values are garbage together, so
// that one that is kept keeps all of them.
const most = 32 << 10

// Of makes values of one type. The zero value is ready for use, by one goroutine
// at a time. What it made is never used again.
type Of[T any] struct {
	free []T
	size int // of the last allocation
}

// New is a zero value.
func (s *Of[T]) New() *T { return &s.take(1)[0] }

// Copy is a copy of x; nil of none.
func (s *Of[T]) Copy(x []T) []T {
	if len(x) == 0 {
		return nil
	}
	to := s.take(len(x))
	copy(to, x)
	return to
}

// take is the next n values. The first allocations are small, for there may be no more.
func (s *Of[T]) take(n int) []T {
	if len(s.free) < n {
		var x T
		s.size = max(n, min(2*s.size, most/int(unsafe.Sizeof(x))), 8)
		s.free = make([]T, s.size)
	}
	x := s.free[:n:n]
	s.free = s.free[n:]
	return x
}
