package devicetest_test

import (
	"testing"

	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/device/devicetest"
)

// The whole test of a device, in its own package.
func ExampleRun() {
	_ = func(t *testing.T) { devicetest.Run(t, cpu.New()) }
	// Output:
}
