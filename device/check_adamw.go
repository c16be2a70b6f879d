package device

import "github.com/lamina-go/lamina/tensor"

// CheckAdamW checks the arguments of a step of AdamW.
func CheckAdamW(dev tensor.Device, w, m, v, grad *tensor.Tensor) error {
	const op = "adamw"
	all := []named{{"weights", w}, {"first mean", m}, {"second mean", v}, {"gradient", grad}}
	for _, n := range all {
		if err := checkPlaced(dev, op, n); err != nil {
			return err
		}
	}
	if d := w.DType(); d != tensor.Float32 && d != tensor.Float64 {
		return argError(op, "weights", d, "float32 or float64", tensor.ErrDType)
	}
	for _, n := range all[1:] {
		if err := checkLike(op, dev, n, w.Shape(), w.DType()); err != nil {
			return err
		}
	}
	for i, n := range all {
		if err := checkApart(op, n, all[i+1:]...); err != nil {
			return err
		}
	}
	return nil
}
