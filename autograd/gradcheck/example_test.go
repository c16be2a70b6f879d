package gradcheck_test

import (
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// Check compares every gradient of a function with finite differences; in a
// test, gradcheck.Test does the same and fails it.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	x, err := tensor.FromSlice([]float64{-1, 0.5, 2}, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	swish := func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
		return ops.Mul(in[0], ops.Sigmoid(in[0]))
	}
	report, err := gradcheck.Check(dev, swish, []*tensor.Tensor{x}, gradcheck.Options{})
	fmt.Println(report.Compared, "compared,", report.Failed, "wrong,", err)
	// Output: 3 compared, 0 wrong, <nil>
}
