package slab

import (
	"slices"
	"testing"
)

func TestValuesAreTheirOwn(t *testing.T) {
	var s Of[int]
	var all []*int
	for i := range 1000 {
		p := s.New()
		if *p != 0 {
			t.Fatalf("value %d is %d", i, *p)
		}
		*p = i + 1
		all = append(all, p)
	}
	for i, p := range all {
		if *p != i+1 {
			t.Fatalf("value %d is %d", i, *p)
		}
	}
}

func TestCopy(t *testing.T) {
	var s Of[int]
	var all, want [][]int
	for i := range 300 {
		x := make([]int, i%150)
		for j := range x {
			x[j] = i + j
		}
		c := s.Copy(x)
		if len(x) == 0 && c != nil {
			t.Fatal("a copy of nothing")
		}
		want = append(want, slices.Clone(x))
		clear(x)
		all = append(all, append(c, -1)) // which must not reach the next
	}
	for i, c := range all {
		if !slices.Equal(c, append(want[i], -1)) {
			t.Fatalf("copy %d is %v, want %v", i, c, want[i])
		}
	}
}

func TestAllocations(t *testing.T) {
	var s Of[[4]int]
	const most = most / 32
	for range 2 * most {
		s.New()
	}
	if n := testing.AllocsPerRun(10, func() {
		for range most {
			s.New()
		}
	}); n != 1 {
		t.Errorf("%v allocations for %d values", n, most)
	}
	if len(s.free) > most {
		t.Errorf("%d values are made ahead", len(s.free))
	}
}
