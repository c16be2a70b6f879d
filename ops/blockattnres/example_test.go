package blockattnres_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/tensor"
)

func vector(x ...float32) *tensor.Tensor {
	t, err := tensor.FromSlice(x, len(x))
	if err != nil {
		panic(err)
	}
	return t
}

func token(x ...float32) *tensor.Tensor {
	t, err := vector(x...).Reshape(1, 1, len(x))
	if err != nil {
		panic(err)
	}
	return t
}

// A query of zeros weighs all sources alike.
func ExampleApply() {
	tape := autograd.NewTape(context.Background(), cpu.New())
	defer tape.Release()
	h := blockattnres.Apply(blockattnres.Inputs{
		Blocks:       []*autograd.Var{tape.Watch(token(1, 2)), tape.Watch(token(3, -4))},
		PartialBlock: tape.Watch(token(5, 8)),
		ProjWeight:   tape.Watch(vector(0, 0)),
		RMSNormGamma: tape.Watch(vector(1, 1)),
	})
	x, err := h.Float64s()
	fmt.Printf("%.3f %v\n", x, err)
	_, err = tape.Backward(ops.Sum(h, ops.All()))
	fmt.Println(err)
	// Output:
	// [3.000 2.000] <nil>
	// <nil>
}

// The operator document's functions: the caches of the forward go into the backward.
func ExampleForward() {
	s := device.NewStream(context.Background(), cpu.New())
	defer s.Release()
	in := blockattnres.Tensors{
		Blocks:       []*tensor.Tensor{token(1, 0, 0, 0), token(0, 1, 0, 0)},
		ProjWeight:   vector(2, 0, 0, 0),
		RMSNormGamma: vector(1, 1, 1, 1),
	}
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: true, Alpha: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	grads, err := blockattnres.Backward(s, token(1, 2, 3, 4), in, out.Alpha, out.RMS)
	if err != nil {
		fmt.Println(err)
		return
	}
	alpha, _ := out.Alpha.Float64s()
	fmt.Printf("alpha %.4f, %d gradients of blocks\n", alpha, len(grads.Blocks))
	// Output: alpha [0.9820 0.0180], 2 gradients of blocks
}
