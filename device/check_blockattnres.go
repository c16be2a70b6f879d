package device

import (
	"fmt"
	"math"

	"github.com/lamina-go/lamina/tensor"
)

// CheckBlockAttnResForward checks the arguments of BlockAttnResForward; a nil
// out checks the inputs alone.
func CheckBlockAttnResForward(dev tensor.Device, a *BlockAttnResArgs, out *BlockAttnResOut) error {
	const op = "blockattnres"
	if a == nil || len(a.Blocks) < 1 || len(a.Blocks) > 127 {
		n := 0
		if a != nil {
			n = len(a.Blocks)
		}
		return argError(op, "blocks", fmt.Sprintf("%d tensors", n), "1 to 127", tensor.ErrCount)
	}
	first := a.Blocks[0]
	for i, b := range a.Sources() {
		name := fmt.Sprintf("blocks[%d]", i)
		if i == len(a.Blocks) {
			name = "partial_block"
		}
		switch {
		case b == nil:
			return argError(op, name, "nil", "a tensor", tensor.ErrMissing)
		case b.Rank() != 3:
			return argError(op, name, b.Shape(), "(B,T,D)", tensor.ErrRank)
		case !b.Shape().Equal(first.Shape()):
			return argError(op, name, b.Shape(), first.Shape().String(), tensor.ErrShape)
		case b.DType() != first.DType() || !b.DType().IsFloat():
			return argError(op, name, b.DType(), first.DType().String(), tensor.ErrDType)
		case b.Device() != dev:
			return argError(op, name, b.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	d := first.Dim(2)
	if d == 0 {
		return argError(op, "blocks[0]", first.Shape(), "D of at least 1", tensor.ErrShape)
	}
	for _, w := range []named{{"proj_weight", a.ProjWeight}, {"rmsnorm_gamma", a.RMSNormGamma}} {
		switch {
		case w.t == nil && w.name == "rmsnorm_gamma" && !a.RMSNorm:
		case w.t == nil:
			return argError(op, w.name, "nil", "a tensor", tensor.ErrMissing)
		case w.t.Rank() != 1 || w.t.Dim(0) != d:
			return argError(op, w.name, w.t.Shape(), fmt.Sprintf("(%d)", d), tensor.ErrShape)
		case w.t.DType() != first.DType():
			return argError(op, w.name, w.t.DType(), first.DType().String(), tensor.ErrDType)
		case w.t.Device() != dev:
			return argError(op, w.name, w.t.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	if math.IsNaN(a.Scale) || math.IsInf(a.Scale, 0) {
		return argError(op, "scale", a.Scale, "a finite number", tensor.ErrValue)
	}
	if !(a.Eps >= 0) || math.IsInf(a.Eps, 0) {
		return argError(op, "rmsnorm_eps", a.Eps, "a finite number of at least 0", tensor.ErrValue)
	}
	return nil
}

// CheckBlockAttnResBackward checks the arguments of BlockAttnResBackward.
func CheckBlockAttnResBackward(dev tensor.Device, a *BlockAttnResArgs, saved *BlockAttnResOut, gradH *tensor.Tensor, grads *BlockAttnResGrads) error {
	const op = "blockattnres backward"
	if err := CheckBlockAttnResForward(dev, a, nil); err != nil {
		return err
	}
	first := a.Blocks[0]
	b, t, l := first.Dim(0), first.Dim(1), len(a.Sources())
	switch {
	case gradH == nil:
		return argError(op, "grad_h", "nil", "a tensor", tensor.ErrMissing)
	case !gradH.Shape().Equal(first.Shape()):
		return argError(op, "grad_h", gradH.Shape(), first.Shape().String(), tensor.ErrShape)
	case gradH.DType() != first.DType():
		return argError(op, "grad_h", gradH.DType(), first.DType().String(), tensor.ErrDType)
	case saved == nil || saved.Alpha == nil:
		return argError(op, "alpha_cache", "nil", "the cache of the forward", tensor.ErrMissing)
	case !saved.Alpha.Shape().Equal(tensor.Shape{b, t, l}):
		return argError(op, "alpha_cache", saved.Alpha.Shape(), fmt.Sprintf("(%d,%d,%d)", b, t, l), tensor.ErrShape)
	case a.RMSNorm && saved.RMS == nil:
		return argError(op, "rms_cache", "nil", "the cache of the forward", tensor.ErrMissing)
	case a.RMSNorm && !saved.RMS.Shape().Equal(tensor.Shape{b, t, l, 1}):
		return argError(op, "rms_cache", saved.RMS.Shape(), fmt.Sprintf("(%d,%d,%d,1)", b, t, l), tensor.ErrShape)
	}
	return nil
}
