package device_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// place is where the tensors of these tests lie.
var place = tensor.CPU

// elsewhere is memory of another device.
type elsewhere struct{ tensor.WriteCounter }

func (*elsewhere) Device() tensor.Device { return tensor.NewDevice("elsewhere", 0) }
func (*elsewhere) Size() int             { return 1 << 10 }

func zeros(t *testing.T, d tensor.DType, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(d, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func must(t *testing.T) func(*tensor.Tensor, error) *tensor.Tensor {
	return func(x *tensor.Tensor, err error) *tensor.Tensor {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}

type wrong struct {
	name string
	err  error
	want error  // nil: the call is right
	says string // part of the message
}

func checkAll(t *testing.T, tests []wrong) {
	t.Helper()
	for _, c := range tests {
		if c.want == nil {
			if c.err != nil {
				t.Errorf("%s: %v", c.name, c.err)
			}
			continue
		}
		var arg *tensor.ArgError
		if !errors.Is(c.err, c.want) || !errors.As(c.err, &arg) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
			continue
		}
		if arg.Op == "" || arg.Arg == "" || arg.Got == "" || arg.Want == "" || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %q does not say operation, argument, got and want (%q)", c.name, c.err, c.says)
		}
	}
}

func TestChecks(t *testing.T) {
	m := must(t)
	x, y := zeros(t, tensor.Float32, 2, 3), zeros(t, tensor.BFloat16, 2, 3)
	long, ints := zeros(t, tensor.Float32, 3, 3), zeros(t, tensor.Int64, 2, 3)
	there := m(tensor.New(&elsewhere{}, tensor.Float32, 2, 3))
	wide := m(zeros(t, tensor.Float32, 1, 3).Expand(2, 3))
	square := zeros(t, tensor.Float32, 3, 3)
	turned := m(square.Transpose(0, 1))
	upper, lower := m(square.Slice(0, 0, 2)), m(square.Slice(0, 1, 3))
	one := zeros(t, tensor.Float32, 1, 1)
	none := zeros(t, tensor.Float32, 0, 3)
	neg, add := device.Unary{Func: device.Neg}, device.Add
	ids := zeros(t, tensor.Int32, 2)
	checkAll(t, []wrong{
		{"fill", device.CheckFill(place, x), nil, ""},
		{"fill nil", device.CheckFill(place, nil), tensor.ErrMissing, "out is nil"},
		{"fill elsewhere", device.CheckFill(place, there), tensor.ErrDevice, "out is elsewhere:0, want cpu"},
		{"fill expanded", device.CheckFill(place, wide), tensor.ErrAlias, "strides [0 1]"},

		{"copy", device.CheckCopy(place, x, y), nil, ""},
		{"copy of an expanded tensor", device.CheckCopy(place, x, wide), nil, ""},
		{"copy in place", device.CheckCopy(place, x, x), nil, ""},
		{"copy of integers", device.CheckCopy(place, x, ints), nil, ""},
		{"copy to integers", device.CheckCopy(place, ints, x), tensor.ErrDType, "int64"},
		{"copy shape", device.CheckCopy(place, x, long), tensor.ErrShape, "x is (3,3), want (2,3)"},
		{"copy onto a turned self", device.CheckCopy(place, square, turned), tensor.ErrAlias, "x's memory"},
		{"copy onto a shifted self", device.CheckCopy(place, upper, lower), tensor.ErrAlias, "out"},
		{"copy nil", device.CheckCopy(place, x, nil), tensor.ErrMissing, "x is nil"},

		{"upload", device.CheckUpload(place, x, zeros(t, tensor.Float32, 2, 3)), nil, ""},
		{"upload dtype", device.CheckUpload(place, x, y), tensor.ErrDType, "bfloat16"},
		{"upload nil", device.CheckUpload(place, x, nil), tensor.ErrMissing, "source is nil"},
		{"upload to nil", device.CheckUpload(place, nil, x), tensor.ErrMissing, "destination is nil"},
		{"upload from elsewhere", device.CheckUpload(place, x, there), tensor.ErrDevice, "source"},
		{"download shape", device.CheckDownload(place, x, long), tensor.ErrShape, "(3,3)"},
		{"download to elsewhere", device.CheckDownload(place, there, x), tensor.ErrDevice, "destination"},

		{"unary", device.CheckUnary(place, neg, x, y), nil, ""},
		{"unary in place", device.CheckUnary(place, neg, x, x), nil, ""},
		{"unary onto a turned self", device.CheckUnary(place, neg, square, turned), tensor.ErrAlias, "another view of x's memory"},
		{"binary onto a shifted self", device.CheckBinary(place, add, upper, lower, lower), tensor.ErrAlias, "another view of a's memory"},
		{"unary function", device.CheckUnary(place, device.Unary{Func: 200}, x, x), tensor.ErrValue, "200"},
		{"unary integers", device.CheckUnary(place, neg, x, ints), tensor.ErrDType, "x is int64"},
		{"unary gradient", device.CheckUnaryGrad(place, neg, x, y, x), nil, ""},
		{"unary gradient shape", device.CheckUnaryGrad(place, neg, x, long, x), tensor.ErrShape, "g is (3,3)"},
		{"unary gradient nil", device.CheckUnaryGrad(place, neg, x, nil, x), tensor.ErrMissing, "g is nil"},
		{"unary gradient integers", device.CheckUnaryGrad(place, neg, x, ints, x), tensor.ErrDType, "g is int64"},

		{"binary", device.CheckBinary(place, add, x, x, y), nil, ""},
		{"binary function", device.CheckBinary(place, 99, x, x, y), tensor.ErrValue, "99"},
		{"binary shape", device.CheckBinary(place, add, x, x, long), tensor.ErrShape, "b is (3,3), want (2,3)"},
		{"binary does not broadcast", device.CheckBinary(place, add, x, x, one), tensor.ErrShape, "b is (1,1)"},
		{"binary nil", device.CheckBinary(place, add, x, nil, x), tensor.ErrMissing, "a is nil"},

		{"where", device.CheckWhere(place, x, ints, x, y), nil, ""},
		{"where condition", device.CheckWhere(place, x, y, x, y), tensor.ErrDType, "cond is bfloat16"},
		{"where integers", device.CheckWhere(place, x, ints, ints, x), tensor.ErrDType, "a is int64"},

		{"reduce", device.CheckReduce(place, device.Sum, one, x), nil, ""},
		{"reduce function", device.CheckReduce(place, 77, one, x), tensor.ErrValue, "77"},
		{"reduce rank", device.CheckReduce(place, device.Sum, zeros(t, tensor.Float32, 1), x), tensor.ErrRank, "(2,3)"},
		{"reduce shape", device.CheckReduce(place, device.Sum, zeros(t, tensor.Float32, 1, 2), x), tensor.ErrShape, "(1,2)"},
		{"sum of nothing", device.CheckReduce(place, device.Sum, zeros(t, tensor.Float32, 1, 3), none), nil, ""},
		{"mean of nothing", device.CheckReduce(place, device.Mean, zeros(t, tensor.Float32, 1, 3), none), tensor.ErrShape, "(0,3)"},
		{"max of nothing", device.CheckReduce(place, device.Max, zeros(t, tensor.Float32, 1, 3), none), tensor.ErrShape, "(0,3)"},
		{"reduce in place", device.CheckReduce(place, device.Sum, x, x), tensor.ErrAlias, "x's memory"},

		{"matmul", device.CheckMatMul(place, long, square, zeros(t, tensor.Float16, 3, 3)), nil, ""},
		{"matmul inner", device.CheckMatMul(place, x, x, x), tensor.ErrShape, "3 rows"},
		{"matmul outer", device.CheckMatMul(place, long, x, long), tensor.ErrShape, "out is (3,3), want (...,2,3)"},
		{"matmul rank", device.CheckMatMul(place, zeros(t, tensor.Float32, 3), square, square), tensor.ErrRank, "out is (3)"},
		{"matmul in place", device.CheckMatMul(place, square, square, long), tensor.ErrAlias, "a's memory"},
		{"matmul integers", device.CheckMatMul(place, x, ints, square), tensor.ErrDType, "a is int64"},

		{"gather", device.CheckGather(place, x, square, ids), nil, ""},
		{"gather ids", device.CheckGather(place, x, square, zeros(t, tensor.Float32, 2)), tensor.ErrDType, "ids is float32"},
		{"gather width", device.CheckGather(place, zeros(t, tensor.Float32, 2, 4), square, ids), tensor.ErrShape, "(2,3)"},
		{"gather rank", device.CheckGather(place, x, square, ints), tensor.ErrRank, "(2,3)"},
		{"gather nil", device.CheckGather(place, x, nil, ids), tensor.ErrMissing, "table is nil"},
		{"gather in place", device.CheckGather(place, upper, square, ids), tensor.ErrAlias, "table's memory"},
		{"scatter", device.CheckScatterAdd(place, square, ids, x), nil, ""},
		{"scatter rows", device.CheckScatterAdd(place, square, ids, long), tensor.ErrShape, "(3,3), want (2,3)"},
		{"scatter expanded", device.CheckScatterAdd(place, wide, ids, x), tensor.ErrAlias, "strides"},
	})
}

// call is the arguments of the fused operator for B, T, D = 1, 2, 3 and 2 blocks.
type call struct {
	a     device.BlockAttnResArgs
	out   device.BlockAttnResOut
	gradH *tensor.Tensor
	grads device.BlockAttnResGrads
}

func newCall(t *testing.T) *call {
	row := func() *tensor.Tensor { return zeros(t, tensor.BFloat16, 1, 2, 3) }
	w := func() *tensor.Tensor { return zeros(t, tensor.BFloat16, 3) }
	return &call{
		a:     device.BlockAttnResArgs{Blocks: []*tensor.Tensor{row(), row()}, PartialBlock: row(), ProjWeight: w(), RMSNormGamma: w(), Scale: 1, Eps: 1e-6, RMSNorm: true},
		out:   device.BlockAttnResOut{H: row(), RMS: zeros(t, tensor.Float32, 1, 2, 3, 1), Alpha: zeros(t, tensor.Float32, 1, 2, 3)},
		gradH: row(),
		grads: device.BlockAttnResGrads{Blocks: []*tensor.Tensor{row(), nil}, PartialBlock: row(), ProjWeight: w(), RMSNormGamma: zeros(t, tensor.Float32, 3)},
	}
}

func TestCheckBlockAttnRes(t *testing.T) {
	f32 := func(shape ...int) *tensor.Tensor { return zeros(t, tensor.Float32, shape...) }
	bf := func(shape ...int) *tensor.Tensor { return zeros(t, tensor.BFloat16, shape...) }
	there := must(t)(tensor.New(&elsewhere{}, tensor.BFloat16, 1, 2, 3))
	thereCache := must(t)(tensor.New(&elsewhere{}, tensor.Float32, 1, 2, 3))
	thereRMS := must(t)(tensor.New(&elsewhere{}, tensor.Float32, 1, 2, 3, 1))
	var many []*tensor.Tensor
	for range 128 {
		many = append(many, bf(1, 2, 3))
	}
	forward := []struct {
		name   string
		change func(c *call)
		want   error
		says   string
	}{
		{"right", func(c *call) {}, nil, ""},
		{"no caches", func(c *call) { c.out.RMS, c.out.Alpha = nil, nil }, nil, ""},
		{"float64 caches", func(c *call) { c.out.Alpha = zeros(t, tensor.Float64, 1, 2, 3) }, nil, ""},
		{"no partial block", func(c *call) { c.a.PartialBlock = nil; c.out.RMS, c.out.Alpha = nil, f32(1, 2, 2) }, nil, ""},
		{"without RMSNorm", func(c *call) { c.a.RMSNorm, c.a.RMSNormGamma, c.out.RMS = false, nil, nil }, nil, ""},
		{"a block twice", func(c *call) { c.a.Blocks[1] = c.a.Blocks[0] }, nil, ""},
		{"scale 0", func(c *call) { c.a.Scale = 0 }, nil, ""},
		{"no blocks", func(c *call) { c.a.Blocks = nil }, tensor.ErrCount, "blocks is 0 tensors, want 1 to 127"},
		{"128 blocks", func(c *call) { c.a.Blocks = many }, tensor.ErrCount, "128"},
		{"nil block", func(c *call) { c.a.Blocks[1] = nil }, tensor.ErrMissing, "blocks[1] is nil"},
		{"rank of a block", func(c *call) { c.a.Blocks[0] = bf(2, 3) }, tensor.ErrRank, "blocks[0] is (2,3), want (B,T,D)"},
		{"shape of a block", func(c *call) { c.a.Blocks[1] = bf(1, 2, 4) }, tensor.ErrShape, "blocks[1] is (1,2,4), want (1,2,3)"},
		{"dtype of a block", func(c *call) { c.a.Blocks[1] = f32(1, 2, 3) }, tensor.ErrDType, "blocks[1] is float32, want bfloat16"},
		{"device of a block", func(c *call) { c.a.Blocks[1] = there }, tensor.ErrDevice, "blocks[1] is elsewhere:0, want cpu"},
		{"shape of the partial block", func(c *call) { c.a.PartialBlock = bf(1, 1, 3) }, tensor.ErrShape, "partial_block is (1,1,3)"},
		{"integers", func(c *call) {
			c.a.Blocks, c.a.PartialBlock = []*tensor.Tensor{zeros(t, tensor.Int32, 1, 2, 3)}, nil
		}, tensor.ErrDType, "int32"},
		{"no proj_weight", func(c *call) { c.a.ProjWeight = nil }, tensor.ErrMissing, "proj_weight is nil"},
		{"shape of proj_weight", func(c *call) { c.a.ProjWeight = bf(4) }, tensor.ErrShape, "proj_weight is (4), want (3)"},
		{"dtype of proj_weight", func(c *call) { c.a.ProjWeight = f32(3) }, tensor.ErrDType, "proj_weight"},
		{"no gamma", func(c *call) { c.a.RMSNormGamma = nil }, tensor.ErrMissing, "rmsnorm_gamma is nil"},
		{"shape of gamma without RMSNorm", func(c *call) { c.a.RMSNorm, c.a.RMSNormGamma, c.out.RMS = false, bf(2), nil }, tensor.ErrShape, "rmsnorm_gamma is (2)"},
		{"D = 0", func(c *call) { c.a.Blocks, c.a.PartialBlock = []*tensor.Tensor{bf(1, 2, 0)}, nil }, tensor.ErrShape, "D of at least 1"},
		{"scale NaN", func(c *call) { c.a.Scale = math.NaN() }, tensor.ErrValue, "scale is NaN"},
		{"scale Inf", func(c *call) { c.a.Scale = math.Inf(-1) }, tensor.ErrValue, "scale is -Inf"},
		{"eps negative", func(c *call) { c.a.Eps = -1e-9 }, tensor.ErrValue, "rmsnorm_eps is -1e-09"},
		{"eps NaN", func(c *call) { c.a.Eps = math.NaN() }, tensor.ErrValue, "rmsnorm_eps is NaN"},
		{"eps Inf", func(c *call) { c.a.Eps = math.Inf(1) }, tensor.ErrValue, "rmsnorm_eps is +Inf"},
		{"no output", func(c *call) { c.out.H = nil }, tensor.ErrMissing, "output is nil"},
		{"shape of the output", func(c *call) { c.out.H = bf(1, 2, 4) }, tensor.ErrShape, "output is (1,2,4), want (1,2,3)"},
		{"dtype of the output", func(c *call) { c.out.H = f32(1, 2, 3) }, tensor.ErrDType, "output is float32, want bfloat16"},
		{"device of the output", func(c *call) { c.out.H = there }, tensor.ErrDevice, "output is elsewhere:0"},
		{"expanded output", func(c *call) { c.out.H = must(t)(bf(1, 1, 3).Expand(1, 2, 3)) }, tensor.ErrAlias, "output"},
		{"output in a block", func(c *call) { c.out.H = c.a.Blocks[1] }, tensor.ErrAlias, "output is in the memory of blocks[1]"},
		{"output in the partial block", func(c *call) { c.out.H = c.a.PartialBlock }, tensor.ErrAlias, "output is in the memory of partial_block"},
		{"rms without RMSNorm", func(c *call) { c.a.RMSNorm = false }, tensor.ErrValue, "rms_cache is given without RMSNorm"},
		{"shape of rms", func(c *call) { c.out.RMS = f32(1, 2, 3) }, tensor.ErrShape, "rms_cache is (1,2,3), want (1,2,3,1)"},
		{"dtype of rms", func(c *call) { c.out.RMS = bf(1, 2, 3, 1) }, tensor.ErrDType, "rms_cache is bfloat16, want float32"},
		{"shape of alpha", func(c *call) { c.out.Alpha = f32(1, 2, 2) }, tensor.ErrShape, "alpha_cache is (1,2,2), want (1,2,3)"},
		{"dtype of alpha", func(c *call) { c.out.Alpha = bf(1, 2, 3) }, tensor.ErrDType, "alpha_cache is bfloat16"},
		{"caches in one memory", func(c *call) { c.out.Alpha = must(t)(c.out.RMS.Squeeze(3)) }, tensor.ErrAlias, "alpha_cache is in the memory of rms_cache"},
	}
	var tests []wrong
	for _, c := range forward {
		x := newCall(t)
		c.change(x)
		tests = append(tests, wrong{"forward: " + c.name, device.CheckBlockAttnResForward(place, &x.a, &x.out), c.want, c.says})
	}
	tests = append(tests, wrong{"forward: nil", device.CheckBlockAttnResForward(place, nil, nil), tensor.ErrCount, "0 tensors"})
	for _, c := range []struct {
		name   string
		change func(c *call)
		want   error
		says   string
	}{
		{"right", func(c *call) {}, nil, ""},
		{"nothing wanted", func(c *call) { c.grads = device.BlockAttnResGrads{} }, nil, ""},
		{"one gradient for two uses of a block", func(c *call) { c.grads.Blocks[1] = c.grads.Blocks[0] }, tensor.ErrAlias, "grad_blocks[1] is in the memory of grad_blocks[0]"},
		{"no grad_h", func(c *call) { c.gradH = nil }, tensor.ErrMissing, "grad_h is nil"},
		{"shape of grad_h", func(c *call) { c.gradH = bf(1, 2, 1) }, tensor.ErrShape, "grad_h is (1,2,1)"},
		{"dtype of grad_h", func(c *call) { c.gradH = f32(1, 2, 3) }, tensor.ErrDType, "grad_h is float32"},
		{"device of grad_h", func(c *call) { c.gradH = there }, tensor.ErrDevice, "grad_h"},
		{"expanded grad_h", func(c *call) { c.gradH = must(t)(bf(1).Expand(1, 2, 3)) }, nil, ""},
		{"no alpha", func(c *call) { c.out.Alpha = nil }, tensor.ErrMissing, "alpha_cache is nil"},
		{"dtype of alpha", func(c *call) { c.out.Alpha = bf(1, 2, 3) }, tensor.ErrDType, "alpha_cache is bfloat16"},
		{"device of alpha", func(c *call) { c.out.Alpha = thereCache }, tensor.ErrDevice, "alpha_cache"},
		{"partial block in the forward only", func(c *call) { c.a.PartialBlock, c.grads.PartialBlock = nil, nil }, tensor.ErrShape, "alpha_cache is (1,2,3), want (1,2,2)"},
		{"no gamma", func(c *call) { c.a.RMSNormGamma = nil }, tensor.ErrMissing, "rmsnorm_gamma"},
		{"no rms", func(c *call) { c.out.RMS = nil }, tensor.ErrMissing, "rms_cache is nil"},
		{"shape of rms", func(c *call) { c.out.RMS = f32(1, 2, 3) }, tensor.ErrShape, "rms_cache is (1,2,3)"},
		{"dtype of rms", func(c *call) { c.out.RMS = bf(1, 2, 3, 1) }, tensor.ErrDType, "rms_cache is bfloat16"},
		{"device of rms", func(c *call) { c.out.RMS = thereRMS }, tensor.ErrDevice, "rms_cache"},
		{"too few gradients", func(c *call) { c.grads.Blocks = c.grads.Blocks[:1] }, tensor.ErrCount, "grad_blocks is 1 tensors, want none or 2"},
		{"shape of a gradient", func(c *call) { c.grads.Blocks[1] = bf(1, 2, 2) }, tensor.ErrShape, "grad_blocks[1] is (1,2,2)"},
		{"shape of a weight's gradient", func(c *call) { c.grads.ProjWeight = bf(1, 3) }, tensor.ErrShape, "grad_proj_weight is (1,3), want (3)"},
		{"integer gradient", func(c *call) { c.grads.RMSNormGamma = zeros(t, tensor.Int32, 3) }, tensor.ErrDType, "grad_rmsnorm_gamma is int32"},
		{"gradient of no partial block", func(c *call) { c.a.PartialBlock = nil; c.out.Alpha, c.out.RMS = f32(1, 2, 2), f32(1, 2, 2, 1) }, tensor.ErrValue, "grad_partial_block"},
		{"gradient of no gamma", func(c *call) { c.a.RMSNorm = false }, tensor.ErrValue, "grad_rmsnorm_gamma"},
		{"gradient in grad_h", func(c *call) { c.grads.Blocks[0] = c.gradH }, tensor.ErrAlias, "grad_blocks[0] is in the memory of grad_h"},
		{"gradient in a block", func(c *call) { c.grads.PartialBlock = c.a.Blocks[1] }, tensor.ErrAlias, "grad_partial_block is in the memory of blocks[1]"},
	} {
		x := newCall(t)
		c.change(x)
		tests = append(tests, wrong{"backward: " + c.name, device.CheckBlockAttnResBackward(place, &x.a, &x.out, x.gradH, &x.grads), c.want, c.says})
	}
	x := newCall(t)
	tests = append(tests,
		wrong{"backward: no caches", device.CheckBlockAttnResBackward(place, &x.a, nil, x.gradH, &x.grads), tensor.ErrMissing, "alpha_cache"},
		wrong{"backward: no gradients", device.CheckBlockAttnResBackward(place, &x.a, &x.out, x.gradH, nil), tensor.ErrMissing, "gradients"})
	checkAll(t, tests)
}
