package elementary_test

import (
	"fmt"

	"github.com/lamina-go/lamina/internal/elementary"
)

// The bits of a result are the same on every machine.
func Example() {
	fmt.Printf("%x\n", elementary.Exp(1))
	fmt.Printf("%x\n", elementary.Erf(0.5))
	// Output:
	// 0x1.5bf0a8b145769p+01
	// 0x1.0a7ef5c18edd2p-01
}
