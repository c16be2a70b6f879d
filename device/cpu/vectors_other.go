//go:build !amd64

package cpu

func vectorKernelsOf(tier) *vectorKernels { return nil }

// pause does nothing: a processor that waits only looks.
func pause() {}
