package optim_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/tensor"
)

// The smallest value of (x-3)^2, with clipped gradients and a schedule.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	x, err := tensor.FromSlice([]float32{0}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	params := []optim.Param{{Value: x}}
	sum, err := optim.NewAccumulator(dev, params)
	if err != nil {
		fmt.Println(err)
		return
	}
	opt, err := optim.NewAdamW(dev, params, optim.AdamWOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	step := func(i int) error {
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		loss := ops.Sum(ops.Square(ops.SubScalar(tape.Watch(x), 3)), ops.All())
		grads, err := tape.Backward(loss)
		if err != nil {
			return err
		}
		if err := sum.Reset(); err != nil {
			return err
		}
		if err := sum.Add(grads); err != nil {
			return err
		}
		norm, err := sum.Norm()
		if err != nil {
			return err
		}
		if norm > 1 {
			if err := sum.Scale(1 / norm); err != nil {
				return err
			}
		}
		return opt.Step(sum, optim.Cosine(i, 10, 200, 0.1, 0))
	}
	for i := range 200 {
		if err := step(i); err != nil {
			fmt.Println(err)
			return
		}
	}
	v, err := x.Float64s()
	fmt.Printf("%.2f %v\n", v, err)
	// Output: [3.00] <nil>
}
