package random_test

import (
	"fmt"

	"github.com/lamina-go/lamina/random"
)

// A number is a function of seed, stream and index: any part of a sequence can
// be made alone, in any order.
func Example() {
	s := random.Source{Seed: 1, Stream: 2}
	forth := []int{s.Intn(0, 100), s.Intn(1, 100), s.Intn(2, 100)}
	back := []int{s.Intn(2, 100), s.Intn(1, 100), s.Intn(0, 100)}
	fmt.Println(forth[0] == back[2] && forth[1] == back[1] && forth[2] == back[0])
	fmt.Printf("%08x\n", random.Source{}.Block(0))
	// Output:
	// true
	// [6627e8d5 e169c58d bc57ac4c 9b00dbd8]
}
