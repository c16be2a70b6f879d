//go:build !amd64

package cpu

func vectorKernelsOf(tier) *vectorKernels { return nil }
