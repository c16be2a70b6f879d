package random

import (
	"math"
	"testing"
)

// The known answers that the authors of Philox publish with Random123
// (kat_vectors, philox4x32 10).
func TestKnownAnswers(t *testing.T) {
	const all = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{all, all, all, all}, [2]uint32{all, all}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) is %x, want %x", c.counter, c.key, got, c.want)
		}
		s := Source{
			Seed:   uint64(c.key[1])<<32 | uint64(c.key[0]),
			Stream: uint64(c.counter[3])<<32 | uint64(c.counter[2]),
		}
		if got := s.Block(uint64(c.counter[1])<<32 | uint64(c.counter[0])); got != c.want {
			t.Errorf("block %x of %x is %x, want %x", c.counter, s, got, c.want)
		}
	}
}

// Numbers of every width are the numbers of the blocks, each bit used once.
func TestWidths(t *testing.T) {
	s := Source{Seed: 3, Stream: 1 << 40}
	for i := range uint64(100) {
		b := s.Block(i)
		for j := range uint64(4) {
			if got := s.Uint32(4*i + j); got != b[j] {
				t.Fatalf("32-bit number %d is %x, want %x", 4*i+j, got, b[j])
			}
		}
		for j := range uint64(2) {
			want := uint64(b[2*j])<<32 | uint64(b[2*j+1])
			if got := s.Uint64(2*i + j); got != want {
				t.Fatalf("64-bit number %d is %x, want %x", 2*i+j, got, want)
			}
			f := s.Float64(2*i + j)
			if f != math.Ldexp(float64(want>>11), -53) || f < 0 || f >= 1 {
				t.Fatalf("uniform number %d is %v", 2*i+j, f)
			}
		}
	}
}

func TestSequencesDiffer(t *testing.T) {
	seen := map[uint64]Source{}
	for _, s := range []Source{{}, {Seed: 1}, {Stream: 1}, {Seed: 1 << 32}, {Stream: 1 << 32}, {Seed: 1, Stream: 1}} {
		for i := range uint64(1000) {
			x := s.Uint64(i)
			if o, ok := seen[x]; ok {
				t.Fatalf("%v and %v share the number %x", s, o, x)
			}
			seen[x] = s
		}
		if s.Uint64(1<<62) == s.Uint64(0) {
			t.Errorf("%v repeats", s)
		}
	}
}

func TestDistributions(t *testing.T) {
	const n = 200000
	s := Source{Seed: 42}
	var sum, square, normal, normal2, normal4, lag float64
	var bins [7]int
	last := 0.0
	for i := range uint64(n) {
		u, z := s.Float64(i), s.Normal(i)
		sum += u
		square += u * u
		normal += z
		normal2 += z * z
		normal4 += z * z * z * z
		lag += z * last
		last = z
		bins[s.Intn(i, 7)]++
	}
	// Each statistic is within five of its own deviations.
	for _, c := range []struct {
		name                 string
		got, want, deviation float64
	}{
		{"mean of the uniform", sum / n, 0.5, math.Sqrt(1.0 / 12 / n)},
		{"mean square of the uniform", square / n, 1.0 / 3, math.Sqrt(4.0 / 45 / n)},
		{"mean of the normal", normal / n, 0, math.Sqrt(1.0 / n)},
		{"variance of the normal", normal2 / n, 1, math.Sqrt(2.0 / n)},
		{"fourth moment of the normal", normal4 / n, 3, math.Sqrt(96.0 / n)},
		{"correlation of neighbours", lag / n, 0, math.Sqrt(1.0 / n)},
	} {
		if math.Abs(c.got-c.want) > 5*c.deviation {
			t.Errorf("%s is %v, want %v +- %.2g", c.name, c.got, c.want, c.deviation)
		}
	}
	var chi float64
	for _, b := range bins {
		d := float64(b) - n/7.0
		chi += d * d / (n / 7.0)
	}
	if chi > 30 { // 6 degrees of freedom: exceeded once in 25,000 seeds
		t.Errorf("chi-squared of the integers is %v: %v", chi, bins)
	}
}

func TestIntnBounds(t *testing.T) {
	s := Source{Seed: 9}
	for _, n := range []int{0, -1, math.MinInt} {
		if got := s.Intn(5, n); got != 0 {
			t.Errorf("below %d: %d", n, got)
		}
	}
	for i := range uint64(2000) {
		for _, n := range []int{1, 2, 3, 1 << 53, math.MaxInt} {
			if got := s.Intn(i, n); got < 0 || got >= n {
				t.Fatalf("%d is not in 0..%d-1", got, n)
			}
		}
	}
}

func TestNormalIsFinite(t *testing.T) {
	s := Source{Seed: 5, Stream: 6}
	for i := range uint64(20000) {
		if z := s.Normal(i); math.IsNaN(z) || math.Abs(z) > 9 {
			t.Fatalf("number %d is %v", i, z)
		}
	}
}
