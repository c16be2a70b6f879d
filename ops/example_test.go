package ops_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// The loss of a linear classifier and its gradient.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	weight, err := tensor.FromSlice([]float32{1, 0, 0, 1, -1, -1}, 3, 2) // 3 classes of 2 features
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := tensor.FromSlice([]float32{2, 0, 0, 3}, 2, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	targets, err := tensor.FromSlice([]int64{0, 1}, 2)
	if err != nil {
		fmt.Println(err)
		return
	}

	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	logits := ops.Linear(tape.Const(x), tape.Watch(weight), nil)
	loss := ops.CrossEntropy(logits, tape.Const(targets), ops.MeanOfCounted, ops.IgnoreIndex).Keep()
	grads, err := tape.Backward(loss)
	if err != nil {
		fmt.Println(err)
		return
	}
	value, err := loss.Item()
	fmt.Printf("%.4f %v %v\n", value, grads.Of(weight), err)
	// Output: 0.0969 (3,2) float32 <nil>
}

// Reductions run over all axes or over some, which are kept if one asks for it.
func ExampleOver() {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	data, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	x := tape.Const(data)
	for _, y := range []*autograd.Var{ops.Sum(x, ops.All()), ops.Sum(x, ops.Over(-1)), ops.Max(x, ops.Over(0).KeepDims())} {
		values, err := y.Float64s()
		fmt.Println(y.Shape(), values, err)
	}
	// Output:
	// () [21] <nil>
	// (2) [6 15] <nil>
	// (1,3) [4 5 6] <nil>
}

// A wrong call sticks to the tape, with the operands and the caller's place.
func Example_errors() {
	dev := cpu.New()
	defer dev.Close()
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	a, err := tensor.Zeros(tensor.Float32, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	y := ops.MatMul(tape.Const(a), tape.Const(a))
	z := ops.Exp(y) // does nothing
	var e *autograd.OpError
	if errors.As(z.Err(), &e) {
		fmt.Println(e.Op, "of", e.Operands)
		fmt.Println(e.Err)
	}
	fmt.Println(errors.Is(z.Err(), tensor.ErrShape))
	// Output:
	// matmul of (2,3) float32, (2,3) float32
	// matmul: operands is (2,3) and (2,3), want equal inner sizes
	// true
}
