package device

import "github.com/lamina-go/lamina/tensor"

// CheckRotary checks the arguments of RotateHalves.
func CheckRotary(dev tensor.Device, out, x, cos, sin *tensor.Tensor) error {
	const op = "rotary"
	all := []named{{"out", out}, {"x", x}, {"cos", cos}, {"sin", sin}}
	if err := checkPlaced(dev, op, all...); err != nil {
		return err
	}
	if err := checkFloat(op, all[1]); err != nil {
		return err
	}
	if x.Rank() < 2 || x.Dim(-1)%2 != 0 {
		return argError(op, "x", x.Shape(), "(...,T,D) with an even D", tensor.ErrShape)
	}
	if err := checkLike(op, dev, all[0], x.Shape(), x.DType()); err != nil {
		return err
	}
	for _, n := range all[2:] {
		if err := checkLike(op, dev, n, tensor.Shape{x.Dim(-2), x.Dim(-1) / 2}, x.DType().Wide()); err != nil {
			return err
		}
	}
	return checkApart(op, all[0], all[1:]...)
}
