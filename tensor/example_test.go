package tensor_test

import (
	"errors"
	"fmt"

	"github.com/lamina-go/lamina/tensor"
)

// A view describes the same memory in another way.
func Example() {
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	columns, _ := x.Transpose(0, 1)
	last, _ := columns.Select(0, -1)
	values, _ := last.Float64s()
	fmt.Println(x, columns, last, values)

	_ = last.SetFloat64s([]float64{30, 60})
	values, _ = x.Float64s()
	fmt.Println(values, "version", x.Memory().Version())

	_, err = columns.Reshape(6)
	fmt.Println(err, errors.Is(err, tensor.ErrShape))
	// Output:
	// (2,3) float32 (3,2) float32 (2) float32 [3 6]
	// [1 2 30 4 5 60] version 1
	// reshape: tensor is (3,2) with strides (1,3), want strides that (6) can be a view of true
}

func ExampleRound() {
	for _, d := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16} {
		fmt.Println(d, tensor.Round(d, 0.1))
	}
	// Output:
	// float64 0.1
	// float32 0.10000000149011612
	// float16 0.0999755859375
	// bfloat16 0.10009765625
}
