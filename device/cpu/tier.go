package cpu

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lamina-go/lamina/tensor"
)

// tier is a set of instructions that kernels are written in. All give the same bits.
type tier string

const (
	portable tier = "portable" // Go
	avx2     tier = "avx2"     // AVX2 and FMA
	avx512   tier = "avx512"   // AVX-512 F, BW, DQ and VL
	neon     tier = "neon"     // of arm64, for the matrix product
)

// tierVariable is the environment variable that forces a tier.
const tierVariable = "LAMINA_TIER"

// The tier in use, chosen once: the best of those the machine has, or the one
// that the environment names. A name it cannot use is an error of every kernel.
var active, tierErr = chooseTier(os.Getenv(tierVariable), machineTiers())

func chooseTier(name string, have []tier) (tier, error) {
	best := have[len(have)-1]
	switch {
	case name == "":
		return best, nil
	case slices.Contains(have, tier(name)):
		return tier(name), nil
	}
	names := make([]string, len(have))
	for i, t := range have {
		names[i] = string(t)
	}
	return best, &tensor.ArgError{Op: "cpu", Arg: tierVariable, Got: fmt.Sprintf("%q", name), Want: "one that this machine has: " + strings.Join(names, ", "), Kind: tensor.ErrValue}
}

// Tier is the set of instructions that the kernels of this process use:
// "portable", "avx2", "avx512" or, on arm64, "neon". It is the best that the machine has, or the
// one that the environment variable LAMINA_TIER names, and changes the speed
// alone. Where the variable names none of the machine's every kernel fails with
// an error that says so.
func Tier() string { return string(active) }
