package device_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/tensor"
)

// A stream runs kernels in order; the first failure is asked for at the end.
func Example() {
	dev := cpu.New()
	defer dev.Close()
	s := device.NewStream(context.Background(), dev)
	defer s.Release() // gives back all memory the kernels made

	x := s.Full(tensor.BFloat16, 3, 2, 4)
	y := s.Unary(device.Unary{Func: device.Square}, tensor.Float32, x)
	total, err := s.Download(s.Reduce(device.Sum, tensor.Float32, y))
	if err != nil {
		fmt.Println(err)
		return
	}
	v, _ := total.Float64s()
	fmt.Println(total.Shape(), v)

	z := s.Binary(device.Add, tensor.Float32, x, s.Full(tensor.Float32, 1, 3))
	s.Free(z) // nil after a failure, which is safe
	fmt.Println(s.Err())
	// Output:
	// (1,1) [72]
	// shapes is (2,4) and (3), want sizes that broadcast (equal or 1)
}
