package memory

import (
	"fmt"
	"math"
	"testing"
)

func TestReaders(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"MemTotal:       24 kB\nMemFree: 7 kB\nSwapTotal:  8 kB\n", 32 << 10, true},
		{"MemTotal: 24 kB", 24 << 10, true},
		{"MemTotal: many kB", 0, false},
		{"MemTotal: 99999999999999999 kB", 0, false},
		{"", 0, false},
	} {
		if n, ok := meminfo(c.text); n != c.want || ok != c.ok {
			t.Errorf("%q: %d %v", c.text, n, ok)
		}
	}
	if n, ok := number("4096\n"); n != 4096 || !ok {
		t.Error(n, ok)
	}
	if _, ok := number("max\n"); ok {
		t.Error("max is a number")
	}
}

func TestFits(t *testing.T) {
	limit := Limit()
	if limit < 64<<20 || limit > most {
		t.Fatalf("a limit of %d bytes", limit)
	}
	for _, c := range []struct {
		sizes []int
		want  bool
	}{
		{[]int{limit}, true}, {[]int{limit + 1}, false}, {[]int{1 << 40, 1 << 40}, false}, {[]int{math.MaxInt, 2, 2}, false},
		{[]int{math.MaxInt, 0}, true}, {[]int{0, -1}, true}, {[]int{-1}, false}, {[]int{3, 5}, true}, {nil, true},
	} {
		if got := Fits(c.sizes...); got != c.want {
			t.Errorf("Fits%v = %v", c.sizes, got)
		}
	}
}

func ExampleFits() {
	fmt.Println(Fits(1024, 8), Fits(1<<50, 8))
	// Output: true false
}
