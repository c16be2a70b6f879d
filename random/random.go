// Package random is a counter-based random number generator: a number is a
// function of a seed, a stream and its index, so that any part of a sequence
// can be made anywhere, in any order, on any number of threads.
//
// The function is Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011).
package random

import (
	"math"

	"github.com/lamina-go/lamina/internal/elementary"
)

// Source is one sequence of random numbers: the seed chooses the key, the
// stream one of 2^64 sequences of that key. The zero value is a valid source.
type Source struct {
	Seed   uint64 // of a whole run
	Stream uint64 // of one use within it: streams of a seed are independent
}

// Block gives the four 32-bit numbers with index i.
func (s Source) Block(i uint64) [4]uint32 {
	return philox([4]uint32{uint32(i), uint32(i >> 32), uint32(s.Stream), uint32(s.Stream >> 32)}, [2]uint32{uint32(s.Seed), uint32(s.Seed >> 32)})
}

func philox(c [4]uint32, k [2]uint32) [4]uint32 {
	for range 10 {
		a, b := uint64(0xD2511F53)*uint64(c[0]), uint64(0xCD9E8D57)*uint64(c[2])
		c = [4]uint32{uint32(b>>32) ^ c[1] ^ k[0], uint32(b), uint32(a>>32) ^ c[3] ^ k[1], uint32(a)}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}

// Uint32 is the i-th 32-bit number.
func (s Source) Uint32(i uint64) uint32 { return s.Block(i / 4)[i%4] }

// Uint64 is the i-th 64-bit number.
func (s Source) Uint64(i uint64) uint64 {
	b := s.Block(i / 2)
	j := i % 2 * 2
	return uint64(b[j])<<32 | uint64(b[j+1])
}

// Float64 is the i-th number of a uniform sequence in [0, 1), a multiple of 2^-53.
func (s Source) Float64(i uint64) float64 { return float64(s.Uint64(i)>>11) / (1 << 53) }

// Normal is the i-th number of a sequence with the normal distribution of mean
// 0 and deviation 1 (Box and Muller, 1958).
func (s Source) Normal(i uint64) float64 {
	u := 1 - s.Float64(i/2*2) // (0, 1]
	angle := 2 * math.Pi * s.Float64(i/2*2+1)
	r := math.Sqrt(-2 * elementary.Log(u))
	if i%2 == 0 {
		return r * elementary.Cos(angle)
	}
	return r * elementary.Sin(angle)
}

// Intn is the i-th number of a uniform sequence of 0..n-1; 0 for n < 1.
func (s Source) Intn(i uint64, n int) int {
	if n < 1 {
		return 0
	}
	// The bias of the product is below 2^-32 for any n that indexes memory in practice.
	return min(int(s.Float64(i)*float64(n)), n-1)
}
