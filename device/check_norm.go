package device

import (
	"math"
	"strconv"

	"github.com/lamina-go/lamina/tensor"
)

// CheckNorm checks the arguments of a norm's forward; mean is nil exactly where x is not centred.
func CheckNorm(dev tensor.Device, a *NormArgs, y, mean, rstd *tensor.Tensor) error {
	const op = "norm"
	if a == nil {
		return argError(op, "arguments", "nil", "those of a call", tensor.ErrMissing)
	}
	if err := checkPlaced(dev, op, named{"y", y}, named{"x", a.X}); err != nil {
		return err
	}
	if err := checkNormInputs(op, dev, a, mean, rstd); err != nil {
		return err
	}
	return checkLike(op, dev, named{"y", y}, a.X.Shape(), a.X.DType())
}

func checkNormInputs(op string, dev tensor.Device, a *NormArgs, mean, rstd *tensor.Tensor) error {
	x := a.X
	if x == nil {
		return argError(op, "x", "nil", "a tensor", tensor.ErrMissing)
	}
	if err := checkFloat(op, named{"x", x}); err != nil {
		return err
	}
	if x.Rank() == 0 || x.Dim(-1) == 0 {
		return argError(op, "x", x.Shape(), "(...,D) with D at least 1", tensor.ErrShape)
	}
	if !(a.Eps >= 0) || math.IsInf(a.Eps, 0) {
		return argError(op, "eps", strconv.FormatFloat(a.Eps, 'g', -1, 64), "a finite number of at least 0", tensor.ErrValue)
	}
	row := x.Shape()[x.Rank()-1:]
	for _, w := range []named{{"weight", a.Weight}, {"bias", a.Bias}} {
		if w.t != nil {
			if err := checkLike(op, dev, w, row, x.DType()); err != nil {
				return err
			}
		}
	}
	var sizes [tensor.MaxRank]int
	kept := append(append(sizes[:0], x.Shape()[:x.Rank()-1]...), 1)
	if (mean != nil) != a.Center {
		return argError(op, "mean", "given: "+strconv.FormatBool(mean != nil), "a tensor exactly where x is centred", tensor.ErrMissing)
	}
	if mean != nil {
		if err := checkLike(op, dev, named{"mean", mean}, kept, tensor.Float64); err != nil {
			return err
		}
	}
	if rstd == nil {
		return argError(op, "rstd", "nil", "a tensor", tensor.ErrMissing)
	}
	return checkLike(op, dev, named{"rstd", rstd}, kept, tensor.Float64)
}

// checkLike reports a tensor of another place, shape or dtype.
func checkLike(op string, dev tensor.Device, n named, shape tensor.Shape, d tensor.DType) error {
	switch {
	case n.t.Device() != dev:
		return argError(op, n.name, n.t.Device(), dev.String(), tensor.ErrDevice)
	case !n.t.Shape().Equal(shape):
		return argError(op, n.name, n.t.Shape(), shape.String(), tensor.ErrShape)
	case n.t.DType() != d:
		return argError(op, n.name, n.t.DType(), d.String(), tensor.ErrDType)
	}
	return nil
}

// CheckNormBackward checks the arguments of a norm's backward.
func CheckNormBackward(dev tensor.Device, a *NormArgs, mean, rstd, gradY, gradX, gradWeight, gradBias *tensor.Tensor) error {
	const op = "norm backward"
	if a == nil {
		return argError(op, "arguments", "nil", "those of a call", tensor.ErrMissing)
	}
	if err := checkNormInputs(op, dev, a, mean, rstd); err != nil {
		return err
	}
	if gradY == nil {
		return argError(op, "grad_y", "nil", "a tensor", tensor.ErrMissing)
	}
	row := a.X.Shape()[a.X.Rank()-1:]
	for _, g := range []struct {
		named
		shape tensor.Shape
	}{{named{"grad_y", gradY}, a.X.Shape()}, {named{"grad_x", gradX}, a.X.Shape()}, {named{"grad_weight", gradWeight}, row}, {named{"grad_bias", gradBias}, row}} {
		if g.t == nil {
			continue
		}
		if err := checkLike(op, dev, g.named, g.shape, a.X.DType()); err != nil {
			return err
		}
		if g.name != "grad_y" && g.t.HasOverlap() {
			return argError(op, g.name, g.t.String(), "one that reaches each element once", tensor.ErrAlias)
		}
	}
	return nil
}
