package tensor

import (
	"math"
	"strconv"
	"strings"
)

// MaxRank is the largest number of axes a tensor may have.
const MaxRank = 8

// Shape holds the sizes of a tensor's axes; a scalar has shape ().
type Shape []int

// String writes a shape as (2,3,4).
func (s Shape) String() string {
	var b strings.Builder
	b.WriteByte('(')
	for i, n := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	b.WriteByte(')')
	return b.String()
}

// Equal reports whether two shapes have the same axes.
func (s Shape) Equal(o Shape) bool {
	if len(s) != len(o) {
		return false
	}
	for i := range s {
		if s[i] != o[i] {
			return false
		}
	}
	return true
}

// Len is the number of elements of a checked shape: 1 for a scalar.
func (s Shape) Len() int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Check reports a shape of more than MaxRank axes (ErrRank), a negative size
// (ErrShape), or sizes whose product, in elements of 8 bytes, does not fit an int (ErrSize).
func (s Shape) Check() error {
	if len(s) > MaxRank {
		return &ArgError{Arg: "shape", Got: s.String(), Want: "at most " + strconv.Itoa(MaxRank) + " axes", Kind: ErrRank}
	}
	n, zero := 1, false
	for _, d := range s {
		if d < 0 {
			return &ArgError{Arg: "shape", Got: s.String(), Want: "no negative size", Kind: ErrShape}
		}
		zero = zero || d == 0
	}
	for _, d := range s {
		// An axis of size 0 does not excuse a product that overflows: strides are made of it.
		if d > 0 {
			if n > math.MaxInt/8/d {
				return &ArgError{Arg: "shape", Got: s.String(), Want: "fewer elements", Kind: ErrSize}
			}
			n *= d
		}
	}
	return nil
}

// Axis turns a possibly negative axis of a shape into its index; -1 is the
// last. Out of range is an error that wraps ErrAxis.
func (s Shape) Axis(axis int) (int, error) { return axisOf(axis, len(s), s) }

func axisOf(axis, rank int, s Shape) (int, error) {
	if axis < -rank || axis >= rank {
		return 0, &ArgError{Arg: "axis", Got: strconv.Itoa(axis), Want: "an axis of " + s.String(), Kind: ErrAxis}
	}
	if axis < 0 {
		axis += rank
	}
	return axis, nil
}

// Axes turns possibly negative axes into a set in ascending order; none at all
// means every axis. An axis out of range or given twice is an error that wraps ErrAxis.
func (s Shape) Axes(axes []int) ([]int, error) {
	if len(s) > MaxRank {
		return nil, s.Check()
	}
	var in [MaxRank]bool
	for _, a := range axes {
		i, err := s.Axis(a)
		if err != nil {
			return nil, err
		}
		if in[i] {
			return nil, &ArgError{Arg: "axes", Got: Shape(axes).String(), Want: "each axis of " + s.String() + " once", Kind: ErrAxis}
		}
		in[i] = true
	}
	out := make([]int, 0, MaxRank)
	for i := range s {
		if in[i] || len(axes) == 0 {
			out = append(out, i)
		}
	}
	return out, nil
}

// Broadcast is the shape that both shapes expand to: aligned at the last axis,
// sizes must be equal or 1. Otherwise an error that wraps ErrShape.
func Broadcast(a, b Shape) (Shape, error) {
	n := max(len(a), len(b))
	out := make(Shape, n)
	for i := 1; i <= n; i++ {
		x, y := 1, 1
		if i <= len(a) {
			x = a[len(a)-i]
		}
		if i <= len(b) {
			y = b[len(b)-i]
		}
		switch {
		case x == y || y == 1:
			out[n-i] = x
		case x == 1:
			out[n-i] = y
		default:
			return nil, &ArgError{Arg: "shapes", Got: a.String() + " and " + b.String(), Want: "sizes that broadcast (equal or 1)", Kind: ErrShape}
		}
	}
	return out, nil
}
