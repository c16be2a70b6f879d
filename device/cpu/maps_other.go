//go:build !amd64

package cpu

import "github.com/lamina-go/lamina/device"

func mapVectors(tier, device.UnaryFunc) (values func(out, x *float32, n int), slopes func(out, g, x *float32, n int)) {
	return nil, nil
}

func expRowVectors(tier) func(e, x *float32, c *[2]float64, n int, lanes *[16]float64) { return nil }
