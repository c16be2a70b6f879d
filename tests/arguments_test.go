package tests

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cascade"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/optim"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// exported functions that take more than plain numbers. The methods of the
// values below are called as well.
var exported = []any{
	ops.Abs, ops.Add, ops.AddScalar, ops.Attention, ops.Cast, ops.Clamp, ops.Concat, ops.CrossEntropy, ops.Div, ops.DivIntoScalar,
	ops.Dropout, ops.Embedding, ops.Expand, ops.GELU, ops.GELUTanh, ops.LayerNorm, ops.Linear, ops.LogSoftmax, ops.LogSumExp,
	ops.MaskedFill, ops.MatMul, ops.Max, ops.Mean, ops.Permute, ops.Pow, ops.RMSNorm, ops.Reshape, ops.RotaryEmbedding, ops.Select,
	ops.SiLU, ops.Slice, ops.Softmax, ops.Squeeze, ops.Stack, ops.Sum, ops.SwiGLU, ops.Transpose, ops.Unsqueeze, ops.Var, ops.Where,
	blockattnres.Apply, blockattnres.Decomposed, blockattnres.Decompose, blockattnres.Forward, blockattnres.Backward,
	device.CheckBlockAttnResForward, device.CheckBlockAttnResBackward, device.CheckBinary, device.CheckCopy, device.CheckDownload,
	device.CheckFill, device.CheckGather, device.CheckMatMul, device.CheckReduce, device.CheckScatterAdd, device.CheckUnary,
	device.CheckUnaryGrad, device.CheckUpload, device.CheckWhere, device.NewStream, device.CheckAdamW, device.CheckAttention,
	device.CheckAttentionBackward, device.CheckMatMulBias, device.CheckNorm, device.CheckNormBackward, device.CheckRotary,
	device.CheckSoftmax, device.CheckSoftmaxBackward, device.CheckCrossEntropy, device.CheckCrossEntropyBackward,
	autograd.NewTape, autograd.Begin, autograd.Failed, gradcheck.Check, nn.NewDepth, nn.NewTransformer, nn.ParseResidual,
	optim.Cosine, optim.NewAccumulator, optim.NewAdamW,
	precision.NewComparison, precision.CommunityOld, precision.CommunityNew, precision.FormatOf, precision.ParseLevel, precision.InputsOf, precision.WithOutliers,
	precision.Bootstrap, precision.Recheck, precision.Table, cascade.Case.Run,
	tensor.Broadcast, tensor.FromFloat64s, tensor.New, tensor.NewDevice, tensor.NewHost, tensor.NewStrided, tensor.ParseDType,
	tensor.ParseDevice, tensor.ResolveShape, tensor.Round, tensor.WrapHost, tensor.Zeros,
}

// sink is an io.Writer.
type sink struct{}

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// badArguments are values, bad and good, of the types that exported functions take.
func badArguments(t *testing.T, dev *cpu.Device) []any {
	must := func(x *tensor.Tensor, err error) *tensor.Tensor {
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := must(tensor.FromFloat64s(tensor.Float32, []float64{1, 2, 3, 4, 5, 6}, 2, 3))
	empty := must(tensor.FromFloat64s(tensor.Float16, nil, 0, 3))
	ids := must(tensor.FromSlice([]int32{0, 7, -1}, 3))
	four := must(tensor.FromSlice([]float32{1, 2, 3, 4}, 1, 2, 1, 2))
	scalar := must(tensor.FromSlice([]float64{1}))
	tape, over := autograd.NewTape(context.Background(), dev), autograd.NewTape(context.Background(), dev)
	released := over.Watch(x)
	over.Release()
	transformer, err := nn.NewTransformer(nn.Config{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Residual: nn.Block, BlockSize: 2}, 1)
	if err != nil {
		t.Fatal(err)
	}
	wide := must(tensor.Zeros(tensor.Float32, 0, 1<<50, 2))
	sum, err := optim.NewAccumulator(dev, []optim.Param{{Value: x}})
	if err != nil {
		t.Fatal(err)
	}
	adam, err := optim.NewAdamW(dev, []optim.Param{{Value: x}}, optim.AdamWOptions{})
	if err != nil {
		t.Fatal(err)
	}
	depth, err := nn.NewDepth(nn.Block, 2, tape.Watch(x))
	if err != nil {
		t.Fatal(err)
	}
	return []any{
		(*tensor.Tensor)(nil), (*autograd.Var)(nil), (*nn.Transformer)(nil), (*nn.Depth)(nil), (*optim.Accumulator)(nil),
		(*optim.AdamW)(nil), (*device.Stream)(nil), (*cpu.Device)(nil), &autograd.OpError{}, sum, adam, depth,
		tape.Watch(wide), ops.AttentionOptions{Causal: true}, 1 << 50, 0.5,
		nn.Config{Vocab: 1 << 40, Layers: 1, Dim: 1 << 10, Heads: 2, Residual: nn.PreNorm}, nn.Config{Vocab: 5, Layers: 1 << 62, Dim: 4, Heads: 2, Residual: nn.Full},
		x, empty, ids, scalar, &tensor.Tensor{}, tensor.NewHost(8), &tensor.Host{},
		tape, over, &autograd.Tape{}, released, &autograd.Var{}, tape.Watch(x), tape.Const(ids), tape.Const(empty), tape.Watch(scalar),
		dev, &cpu.Device{}, device.NewStream(context.Background(), dev), &device.Stream{}, context.Background(),
		0, -1, 5, math.MaxInt, math.MinInt, uint64(9), "", "x", math.NaN(), math.Inf(1), -1.0, true,
		[]int{-1}, []int{math.MaxInt, math.MaxInt}, []int{0}, []int{2, 3}, []int{-1, -1}, []float64{1, 2},
		[]*autograd.Var{nil}, []*autograd.Var{tape.Watch(x), nil}, []*tensor.Tensor{nil}, []*tensor.Tensor{x, nil, empty},
		ops.All(), ops.Over(9), ops.Over(-3, 0), ops.Over(0, 0), ops.AttentionOptions{}, random.Source{}, tensor.Shape{-1}, tensor.Shape{2, 3},
		tensor.DType(200), tensor.Float32, tensor.BFloat16, tensor.Int32,
		(*precision.Comparison)(nil), precision.NewComparison("x", precision.BF16, precision.Options{}), &precision.Comparison{}, precision.Options{Compatible: true},
		precision.Format{}, precision.FP16, precision.Level{}, precision.L2, precision.Result{}, []precision.Result{{}}, precision.Distribution{}, precision.Normal(0, 1),
		[]precision.Ratios{{}}, precision.Ratios{}, precision.Histogram{}, precision.Interval{}, sink{}, cascade.Case{}, cascade.Case{B: 1, T: 2, N: 1, D: 3, DType: tensor.Float16, Memory: 1},
		blockattnres.Inputs{Blocks: []*autograd.Var{nil}}, blockattnres.Inputs{Blocks: []*autograd.Var{tape.Watch(x)}},
		blockattnres.Tensors{Blocks: []*tensor.Tensor{x, nil}}, &device.BlockAttnResArgs{Blocks: []*tensor.Tensor{nil}},
		&device.BlockAttnResArgs{Blocks: []*tensor.Tensor{x}}, &device.BlockAttnResOut{}, &device.BlockAttnResGrads{},
		&device.NormArgs{}, &device.NormArgs{X: x}, &device.NormArgs{X: x, Eps: -1}, &device.NormArgs{X: x, Weight: scalar, Center: true}, &device.NormArgs{X: empty}, &device.NormArgs{X: &tensor.Tensor{}},
		&device.CrossEntropyArgs{}, &device.CrossEntropyArgs{X: x, Targets: ids}, &device.CrossEntropyArgs{X: x, Targets: must(ids.Slice(0, 0, 2))}, &device.CrossEntropyArgs{X: empty, Targets: &tensor.Tensor{}},
		&device.AttentionArgs{}, &device.AttentionArgs{Q: x, K: x, V: x}, &device.AttentionArgs{Q: four, K: four, V: four, Causal: true}, &device.AttentionArgs{Q: four, K: four, V: four, Scale: math.NaN()}, four,
		[]optim.Param{{}}, []optim.Param{{Value: x}}, autograd.Gradients{}, transformer,
	}
}

// Nothing exported panics, whatever it is given.
func TestNoPanic(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	values := badArguments(t, dev)
	of := func(want reflect.Type) []int { // -1 is the zero value
		list := []int{-1}
		for i, x := range values {
			if reflect.TypeOf(x).AssignableTo(want) {
				list = append(list, i)
			}
		}
		return list
	}
	calls := 0
	call := func(name string, f reflect.Value, at []int) {
		in := make([]reflect.Value, len(at))
		for i, at := range at {
			if in[i] = reflect.Zero(f.Type().In(i)); at >= 0 {
				in[i] = reflect.ValueOf(values[at])
			}
		}
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("%s panics with %v, given %v", name, r, in)
			}
		}()
		calls++
		if f.Type().IsVariadic() {
			f.CallSlice(in)
		} else {
			f.Call(in)
		}
	}
	try := func(name string, f func() reflect.Value) {
		signature := f().Type()
		lists, total := make([][]int, signature.NumIn()), 1
		for i := range lists {
			lists[i] = of(signature.In(i))
			total *= len(lists[i])
		}
		tries := min(total, 1000)
		for k := range tries {
			if total > tries {
				k = random.Source{Seed: 1}.Intn(uint64(k), total)
			}
			at := make([]int, len(lists))
			for i, list := range lists {
				at[i], k = list[k%len(list)], k/len(list)
			}
			values = badArguments(t, dev) // a failure sticks to a tape, so each call has its own
			call(name, f(), at)
		}
	}
	for i, f := range exported {
		try(fmt.Sprintf("exported[%d] %T", i, f), func() reflect.Value { return reflect.ValueOf(f) })
	}
	for i, x := range values {
		for m := range reflect.TypeOf(x).NumMethod() {
			try(fmt.Sprintf("%T.%s", x, reflect.TypeOf(x).Method(m).Name), func() reflect.Value { return reflect.ValueOf(values[i]).Method(m) })
		}
	}
	t.Logf("%d calls", calls)
}
