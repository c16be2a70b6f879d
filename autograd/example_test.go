package autograd_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// One step: watch the parameters, compute, go backwards, use the gradients.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()

	w, err := tensor.FromSlice([]float32{1, -2, 3}, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	loss := ops.Sum(ops.Square(tape.Watch(w)), ops.All())
	grads, err := tape.Backward(loss) // also the first failure of anything above
	if err != nil {
		fmt.Println(err)
		return
	}
	value, _ := loss.Item()
	gradient, _ := tape.Download(grads.Of(w))
	g, _ := gradient.Float64s()
	fmt.Println(value, g)
	// Output:
	// 14 [2 -4 6]
}

// halve is an operation of one's own: y = x/2.
func halve(x *autograd.Var) *autograd.Var {
	t, ok := autograd.Begin("halve", x)
	if !ok {
		return t.Dead()
	}
	half := device.Unary{Func: device.DivScalar, A: 2}
	return t.Record(t.Unary(half, x.DType(), x.Tensor()), &halved{half}, x)
}

// halved is its node. Nothing of the forward is needed, so nothing is saved.
type halved struct{ half device.Unary }

func (n *halved) Backward(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{s.Unary(n.half, grad.DType(), grad)}
}

func ExampleNode() {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()

	x, _ := tensor.FromSlice([]float64{3}, 1)
	y := halve(halve(tape.Watch(x))).Keep()
	grads, err := tape.Backward(y)
	if err != nil {
		fmt.Println(err)
		return
	}
	value, _ := y.Item()
	gradient, _ := tape.Download(grads.Of(x))
	g, _ := gradient.Float64s()
	fmt.Println(value, g)
	// Output: 0.75 [0.25]
}
