package tensor

import (
	"errors"
	"testing"
)

// A tensor of an arena is what the same call gives without one, and stays so.
func TestArena(t *testing.T) {
	var a Arena
	mem := NewHost(24 * 4)
	type made struct{ got, want *Tensor }
	var all []made
	for range 100 {
		x, err := a.New(mem, Float32, 2, 3, 4)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := New(mem, Float32, 2, 3, 4)
		all = append(all, made{x, want})
		for _, f := range []struct {
			in, out func(x *Tensor) (*Tensor, error)
		}{
			{func(x *Tensor) (*Tensor, error) { return a.Reshape(x, 4, -1) }, func(x *Tensor) (*Tensor, error) { return x.Reshape(4, -1) }},
			{func(x *Tensor) (*Tensor, error) { return a.Transpose(x, 0, -1) }, func(x *Tensor) (*Tensor, error) { return x.Transpose(0, -1) }},
			{func(x *Tensor) (*Tensor, error) { return a.Expand(x, 5, 2, 3, 4) }, func(x *Tensor) (*Tensor, error) { return x.Expand(5, 2, 3, 4) }},
		} {
			y, err := f.in(x)
			if err != nil {
				t.Fatal(err)
			}
			want, _ := f.out(x)
			all = append(all, made{y, want})
		}
	}
	for i, m := range all {
		if !m.got.Is(m.want) || m.got.Len() != m.want.Len() {
			t.Fatalf("tensor %d is %v with strides %v, want %v with %v", i, m.got, m.got.Strides(), m.want, m.want.Strides())
		}
	}
	if n := testing.AllocsPerRun(100, func() { a.Transpose(all[0].got, 0, 1) }); n >= 1 {
		t.Errorf("%v allocations for each view", n)
	}
	for _, err := range []error{
		second(a.New(mem, Float32, 25)), second(a.New(nil, Float32, 1)), second(a.Reshape(all[0].got, 7)),
		second(a.Transpose(all[0].got, 0, 3)), second(a.Expand(all[0].got, 2)), second(a.Reshape(nil)), second(a.Transpose(nil, 0, 0)), second(a.Expand(nil)),
	} {
		var arg *ArgError
		if !errors.As(err, &arg) {
			t.Errorf("a bad argument gave %v", err)
		}
	}
}

func second(_ *Tensor, err error) error { return err }
