package cpu

import "github.com/lamina-go/lamina/device"

// The functions on vectors; see internal/asmgen.

//go:noescape
func mapExpAVX512(out, x *float32, n int)

//go:noescape
func mapSigmoidAVX512(out, x *float32, n int)

//go:noescape
func mapSiLUAVX512(out, x *float32, n int)

//go:noescape
func mapGELUTanhAVX512(out, x *float32, n int)

//go:noescape
func mapSigmoidSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapSiLUSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapGELUTanhSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapGELUAVX512(out, x *float32, n int)

//go:noescape
func mapTanhAVX512(out, x *float32, n int)

//go:noescape
func mapReLUAVX512(out, x *float32, n int)

//go:noescape
func mapExpSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapGELUSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapTanhSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func mapReLUSlopeAVX512(out, grad, x *float32, n int)

//go:noescape
func expRowAVX512(e, x *float32, c *[2]float64, n int, lanes *[16]float64)

//go:noescape
func mapExpAVX2(out, x *float32, n int)

//go:noescape
func mapSigmoidAVX2(out, x *float32, n int)

//go:noescape
func mapSiLUAVX2(out, x *float32, n int)

//go:noescape
func mapGELUTanhAVX2(out, x *float32, n int)

//go:noescape
func mapSigmoidSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapSiLUSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapGELUTanhSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapGELUAVX2(out, x *float32, n int)

//go:noescape
func mapTanhAVX2(out, x *float32, n int)

//go:noescape
func mapReLUAVX2(out, x *float32, n int)

//go:noescape
func mapExpSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapGELUSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapTanhSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func mapReLUSlopeAVX2(out, grad, x *float32, n int)

//go:noescape
func expRowAVX2(e, x *float32, c *[2]float64, n int, lanes *[16]float64)

func mapVectors(t tier, f device.UnaryFunc) (values func(out, x *float32, n int), slopes func(out, g, x *float32, n int)) {
	switch t {
	case avx512:
		switch f {
		case device.Exp:
			return mapExpAVX512, mapExpSlopeAVX512
		case device.Sigmoid:
			return mapSigmoidAVX512, mapSigmoidSlopeAVX512
		case device.SiLU:
			return mapSiLUAVX512, mapSiLUSlopeAVX512
		case device.GELUTanh:
			return mapGELUTanhAVX512, mapGELUTanhSlopeAVX512
		case device.GELU:
			return mapGELUAVX512, mapGELUSlopeAVX512
		case device.Tanh:
			return mapTanhAVX512, mapTanhSlopeAVX512
		case device.ReLU:
			return mapReLUAVX512, mapReLUSlopeAVX512
		}
	case avx2:
		switch f {
		case device.Exp:
			return mapExpAVX2, mapExpSlopeAVX2
		case device.Sigmoid:
			return mapSigmoidAVX2, mapSigmoidSlopeAVX2
		case device.SiLU:
			return mapSiLUAVX2, mapSiLUSlopeAVX2
		case device.GELUTanh:
			return mapGELUTanhAVX2, mapGELUTanhSlopeAVX2
		case device.GELU:
			return mapGELUAVX2, mapGELUSlopeAVX2
		case device.Tanh:
			return mapTanhAVX2, mapTanhSlopeAVX2
		case device.ReLU:
			return mapReLUAVX2, mapReLUSlopeAVX2
		}
	}
	return nil, nil
}

func expRowVectors(t tier) func(e, x *float32, c *[2]float64, n int, lanes *[16]float64) {
	switch t {
	case avx512:
		return expRowAVX512
	case avx2:
		return expRowAVX2
	}
	return nil
}
