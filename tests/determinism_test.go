package tests

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// trained is a digest of a small model's parameters and losses after a few
// steps: every kind of kernel has a part in it.
func trained(t *testing.T, dev *cpu.Device, d tensor.DType, r nn.Residual) string {
	t.Helper()
	model, err := nn.NewTransformer(nn.Config{Vocab: 61, Layers: 2, Dim: 24, Heads: 4, KVHeads: 2, Residual: r, BlockSize: 3, DType: d}, 5)
	if err != nil {
		t.Fatal(err)
	}
	var params []optim.Param
	for _, p := range model.Parameters() {
		params = append(params, optim.Param{Value: p.Value, Decay: p.Decay})
	}
	sum, err := optim.NewAccumulator(dev, params)
	if err != nil {
		t.Fatal(err)
	}
	opt, err := optim.NewAdamW(dev, params, optim.AdamWOptions{WeightDecay: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.New()
	add := func(x *tensor.Tensor) {
		bits, err := x.Bits()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bits {
			digest.Write(binary.LittleEndian.AppendUint64(nil, b))
		}
	}
	src := random.Source{Seed: 8}
	for step := range 3 {
		tape := autograd.NewTape(context.Background(), dev)
		ids := make([]int32, 2*3*37)
		for i := range ids {
			ids[i] = int32(src.Intn(uint64(step*len(ids)+i), 61))
		}
		half := len(ids) / 2
		x, err := tensor.FromSlice(ids[:half], 3, 37)
		if err != nil {
			t.Fatal(err)
		}
		y, err := tensor.FromSlice(ids[half:], 3, 37)
		if err != nil {
			t.Fatal(err)
		}
		loss := model.Loss(tape, tape.Const(x), tape.Const(y))
		grads, err := tape.Backward(loss)
		if err != nil {
			t.Fatal(err)
		}
		l, err := loss.Download()
		if err != nil {
			t.Fatal(err)
		}
		add(l)
		for _, err := range []error{sum.Reset(), sum.Add(grads), opt.Step(sum, 0.01)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		tape.Release()
	}
	for _, p := range params {
		add(p.Value)
	}
	return fmt.Sprintf("%x", digest.Sum(nil)[:8])
}

// The digests are those of every machine and compiler: amd64 with and without
// fused multiply-adds in the compiler's hands, and any other architecture.
var digests = map[string]string{
	"float32/prenorm":  "6846eb1f094f7451",
	"float32/block":    "c954de4e78c2ff56",
	"float32/full":     "aa941401248ac907",
	"float64/prenorm":  "66340473fb3c0b52",
	"float64/block":    "b1aa965b12426fb2",
	"float64/full":     "995bada43c73dec6",
	"bfloat16/prenorm": "3171b137c69f7c6f",
	"bfloat16/block":   "618de192deefb4de",
	"bfloat16/full":    "636d9f26c590be70",
	"float16/prenorm":  "5845f31b24cc9980",
	"float16/block":    "b4df981ad4d0ee5f",
	"float16/full":     "63ef5139d439800a",
}

func TestSameBitsEverywhere(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16} {
		for _, r := range []nn.Residual{nn.PreNorm, nn.Block, nn.Full} {
			name := fmt.Sprintf("%v/%s", d, r)
			t.Run(name, func(t *testing.T) {
				dev := cpu.New(cpu.Threads(2))
				defer dev.Close()
				if got := trained(t, dev, d, r); got != digests[name] {
					t.Errorf("digest %q, want %q", got, digests[name])
				}
			})
		}
	}
}

// GOMAXPROCS and the number of threads change nothing, and nothing hangs.
func TestSameBitsOnAnyNumberOfThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	done := make(chan struct{})
	go func() { // a deadlock is reported here and not by the time limit of all tests
		select {
		case <-done:
		case <-time.After(5 * time.Minute):
			panic("a kernel hangs")
		}
	}()
	defer close(done)
	for _, procs := range []int{1, 2, 3, 7} {
		for _, threads := range []int{1, 2, 7} {
			runtime.GOMAXPROCS(procs)
			dev := cpu.New(cpu.Threads(threads))
			if got, want := trained(t, dev, tensor.Float32, nn.Block), digests["float32/block"]; got != want {
				t.Errorf("GOMAXPROCS=%d, %d threads: digest %q, want %q", procs, threads, got, want)
			}
			dev.Close()
		}
	}
}
