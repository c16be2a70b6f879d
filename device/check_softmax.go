package device

import (
	"strconv"

	"github.com/lamina-go/lamina/tensor"
)

// CheckSoftmax checks the arguments of a softmax's forward.
func CheckSoftmax(dev tensor.Device, y, stats, x *tensor.Tensor) error {
	const op = "softmax"
	if err := checkPlaced(dev, op, named{"y", y}, named{"stats", stats}, named{"x", x}); err != nil {
		return err
	}
	if err := checkSoftmaxInput(op, x); err != nil {
		return err
	}
	if err := checkRowNumbers(op, dev, named{"stats", stats}, x, tensor.Float64, 2); err != nil {
		return err
	}
	if err := checkPlaced(dev, op, named{"stats", stats}); err != nil { // it is an output too
		return err
	}
	if err := checkLike(op, dev, named{"y", y}, x.Shape(), x.DType()); err != nil {
		return err
	}
	if err := checkApart(op, named{"stats", stats}, named{"y", y}, named{"x", x}); err != nil {
		return err
	}
	return checkInPlace(op, named{"y", y}, named{"x", x})
}

// CheckSoftmaxBackward checks the arguments of a softmax's backward.
func CheckSoftmaxBackward(dev tensor.Device, gradX, gradY, x, stats *tensor.Tensor) error {
	const op = "softmax backward"
	all := []named{{"grad_x", gradX}, {"grad_y", gradY}, {"x", x}, {"stats", stats}}
	if err := checkPlaced(dev, op, all...); err != nil {
		return err
	}
	if err := checkSoftmaxInput(op, x); err != nil {
		return err
	}
	if err := checkRowNumbers(op, dev, all[3], x, tensor.Float64, 2); err != nil {
		return err
	}
	for _, n := range all[:2] {
		if err := checkLike(op, dev, n, x.Shape(), x.DType()); err != nil {
			return err
		}
	}
	return checkApart(op, all[0], all[1:]...)
}

func checkSoftmaxInput(op string, x *tensor.Tensor) error {
	if err := checkFloat(op, named{"x", x}); err != nil {
		return err
	}
	if x.Rank() == 0 || x.Dim(-1) == 0 {
		return argError(op, "x", x.Shape(), "(...,C) with C at least 1", tensor.ErrShape)
	}
	return nil
}

// checkRowNumbers reports a tensor that is not some numbers of a dtype for each row of x.
func checkRowNumbers(op string, dev tensor.Device, n named, x *tensor.Tensor, d tensor.DType, numbers int) error {
	var sizes [tensor.MaxRank]int
	kept := append(sizes[:0], x.Shape()...)
	kept[len(kept)-1] = numbers
	return checkLike(op, dev, n, kept, d)
}

// CheckCrossEntropy checks the arguments of a cross-entropy's forward but for the targets themselves.
func CheckCrossEntropy(dev tensor.Device, a *CrossEntropyArgs, loss, stats *tensor.Tensor) error {
	const op = "cross entropy"
	if err := checkCrossEntropyArgs(op, dev, a); err != nil {
		return err
	}
	outputs := []named{{"loss", loss}, {"stats", stats}}
	for i, d := range []tensor.DType{a.X.DType().Wide(), tensor.Float64} {
		if err := checkPlaced(dev, op, outputs[i]); err != nil {
			return err
		}
		if err := checkRowNumbers(op, dev, outputs[i], a.X, d, 1+i); err != nil {
			return err
		}
		if err := checkApart(op, outputs[i], named{"x", a.X}, named{"targets", a.Targets}); err != nil {
			return err
		}
	}
	return checkApart(op, outputs[0], outputs[1])
}

// CheckCrossEntropyBackward checks the arguments of a cross-entropy's backward
// but for the targets themselves.
func CheckCrossEntropyBackward(dev tensor.Device, a *CrossEntropyArgs, stats, gradLoss, gradX *tensor.Tensor) error {
	const op = "cross entropy backward"
	if err := checkCrossEntropyArgs(op, dev, a); err != nil {
		return err
	}
	all := []named{{"grad_x", gradX}, {"stats", stats}, {"grad_loss", gradLoss}}
	if err := checkPlaced(dev, op, all...); err != nil {
		return err
	}
	if err := checkLike(op, dev, all[0], a.X.Shape(), a.X.DType()); err != nil {
		return err
	}
	for i, d := range []tensor.DType{tensor.Float64, a.X.DType().Wide()} {
		if err := checkRowNumbers(op, dev, all[1+i], a.X, d, 2-i); err != nil {
			return err
		}
	}
	return checkApart(op, all[0], append(all[1:], named{"x", a.X}, named{"targets", a.Targets})...)
}

func checkCrossEntropyArgs(op string, dev tensor.Device, a *CrossEntropyArgs) error {
	if a == nil {
		return argError(op, "arguments", "nil", "those of a call", tensor.ErrMissing)
	}
	for _, n := range []named{{"x", a.X}, {"targets", a.Targets}} {
		if n.t == nil {
			return argError(op, n.name, "nil", "a tensor", tensor.ErrMissing)
		}
		if n.t.Device() != dev {
			return argError(op, n.name, n.t.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	if err := checkSoftmaxInput(op, a.X); err != nil {
		return err
	}
	if a.X.Rank() != 2 {
		return argError(op, "x", a.X.Shape(), "(N,C)", tensor.ErrRank)
	}
	if !a.Targets.DType().IsInt() {
		return argError(op, "targets", a.Targets.DType(), "an integer type", tensor.ErrDType)
	}
	if a.Targets.Rank() != 1 || a.Targets.Dim(0) != a.X.Dim(0) {
		return argError(op, "targets", a.Targets.Shape(), "("+strconv.Itoa(a.X.Dim(0))+")", tensor.ErrShape)
	}
	return nil
}
