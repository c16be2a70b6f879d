package devicetest_test

import (
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/device/devicetest"
)

func TestCPU(t *testing.T) { devicetest.Run(t, cpu.New()) }

// A device without fused kernels passes as well.
func TestPlain(t *testing.T) { devicetest.Run(t, struct{ device.Device }{cpu.New(cpu.Threads(1))}) }
