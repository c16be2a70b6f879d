package nn_test

import (
	"context"
	"fmt"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/tensor"
)

// A small transformer whose sublayers attend over blocks of two.
func ExampleNewTransformer() {
	dev := cpu.New()
	defer dev.Close()
	m, err := nn.NewTransformer(nn.Config{Vocab: 16, Layers: 2, Dim: 8, Heads: 2, Residual: nn.Block, BlockSize: 2}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := tensor.FromSlice([]int32{1, 2, 3, 4}, 1, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	fmt.Println(m.Logits(tape, tape.Const(ids)).Shape())
	for i, w := range m.Weights(tape, tape.Const(ids)) {
		fmt.Println("read", i, "sees", w.Shape()[2], "sources")
	}
	// Output:
	// (1,4,16)
	// read 0 sees 1 sources
	// read 1 sees 2 sources
	// read 2 sees 2 sources
	// read 3 sees 3 sources
	// read 4 sees 3 sources
}
