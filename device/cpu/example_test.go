package cpu_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// A kernel called on its own: most programs leave this to a tape.
func ExampleNew() {
	dev := cpu.New(cpu.Threads(2))
	defer dev.Close()
	x, _ := tensor.FromSlice([]float32{1, 4, 9}, 3)
	y, _ := tensor.Zeros(tensor.Float32, 3)
	err := dev.Unary(context.Background(), device.Unary{Func: device.Sqrt}, y, x)
	values, _ := y.Float64s()
	fmt.Println(values, err)
	// Output: [1 2 3] <nil>
}
