package cpu

import "testing"

// FMA32 is the portable fused multiply-add.
var FMA32 = fma32

// EachTier runs a test in every tier of the machine.
func EachTier(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	before := active
	defer func() { active = before }()
	for _, x := range machineTiers() {
		active = x
		t.Run(string(x), run)
	}
}
