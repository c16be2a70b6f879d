// Package device says what a device must be able to compute, and runs kernels
// on it in order.
//
// [Device] is the contract: a narrow set of kernels in which every operation of
// package ops can be expressed. A device may do more, by implementing one of
// the optional interfaces for fused kernels ([BlockAttnRes], [Attention], [Norm],
// [Rotary], [Softmax], [AdamW] and [MatMulBias]); they are
// found by type assertion, and a device may decline a call with an error that
// wraps errors.ErrUnsupported. Package devicetest proves an implementation.
//
// # Rules for every kernel
//
// Outputs come first. Tensors may be any strided views; an output must not
// reach one element twice. The element types of a call may differ: operands
// are widened when loaded, arithmetic is done in float64 if any operand or the
// output is float64 and in float32 otherwise, and results are rounded once when
// stored. Results do not depend on the number of threads: sums have a fixed
// order. A kernel returns ctx's error if ctx is cancelled while it runs, and an
// [tensor.ArgError] if its arguments do not fit; it never panics.
package device

import (
	"context"

	"github.com/lamina-go/lamina/tensor"
)

// Device computes on tensors whose memory it allocated. It may be used by many
// goroutines at once; each kernel call is complete, or queued in order behind
// the caller's earlier ones, when it returns.
type Device interface {
	// Name is the place that tensors of this device report.
	Name() tensor.Device

	// Alloc gives n bytes whose content is undefined. Free takes them back;
	// nothing may use them afterwards.
	Alloc(n int) (tensor.Memory, error)
	Free(tensor.Memory)

	// Upload copies a host tensor to dst, Download copies src to a host tensor.
	// Shapes and dtypes are equal on both sides.
	Upload(ctx context.Context, dst, host *tensor.Tensor) error
	Download(ctx context.Context, host, src *tensor.Tensor) error

	// Fill sets every element of out to value.
	Fill(ctx context.Context, out *tensor.Tensor, value float64) error

	// Copy converts x, of the shape of out, to out's dtype. A copy within one
	// dtype is exact to the bit. From floating point to an integer is refused.
	Copy(ctx context.Context, out, x *tensor.Tensor) error

	// Unary: out = f(x), element by element; shapes are equal.
	Unary(ctx context.Context, f Unary, out, x *tensor.Tensor) error

	// UnaryGrad: out = g * f'(x), element by element; shapes are equal.
	UnaryGrad(ctx context.Context, f Unary, out, g, x *tensor.Tensor) error

	// Binary: out = f(a, b), element by element; shapes are equal (Expand first).
	Binary(ctx context.Context, f Binary, out, a, b *tensor.Tensor) error

	// Where: out = a where cond is not 0, else b; shapes are equal, cond is an integer tensor.
	Where(ctx context.Context, out, cond, a, b *tensor.Tensor) error

	// Reduce folds x to the shape of out, whose axes have x's size or 1. The
	// mean and the extremum of no elements are refused; their sum is 0.
	Reduce(ctx context.Context, f Reduction, out, x *tensor.Tensor) error

	// MatMul: out (...,M,N) = a (...,M,K) times b (...,K,N), with equal leading
	// axes (Expand first) of at least rank 2. Each element is accumulated in
	// the wide type in order of K.
	MatMul(ctx context.Context, out, a, b *tensor.Tensor) error

	// Gather: out (n,D) = rows ids (n) of table (V,D). An id outside 0..V-1 is
	// an error that wraps tensor.ErrIndex, and out is not written.
	Gather(ctx context.Context, out, table, ids *tensor.Tensor) error

	// ScatterAdd adds row i of x (n,D) to row ids[i] of out (V,D). Rows of one
	// id are added in order of i in a wider type and rounded once. An id
	// outside 0..V-1 is an error, and out is not written.
	ScatterAdd(ctx context.Context, out, ids, x *tensor.Tensor) error

	// Sync waits until all that was queued is done and reports its first error.
	Sync(ctx context.Context) error
}

// UnaryFunc names a function of one number.
type UnaryFunc uint8

// The functions of one number; A and B are the parameters of [Unary].
const (
	Neg        UnaryFunc = iota // -x
	Abs                         // |x|, derivative 0 at 0
	Exp                         //
	Log                         // natural
	Sqrt                        //
	Rsqrt                       // 1/sqrt(x)
	Reciprocal                  // 1/x
	Square                      //
	Sin                         // radians
	Cos                         // radians
	Tanh                        //
	Erf                         //
	Sigmoid                     // 1/(1+exp(-x))
	ReLU                        // max(x, 0), derivative 0 at 0
	GELU                        // x times the normal distribution function of x
	GELUTanh                    // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
	SiLU                        // x sigmoid(x)
	Clamp                       // min(max(x, A), B), derivative 1 from A to B inclusive
	Pow                         // x^A
	AddScalar                   // x + A
	SubFrom                     // A - x
	MulScalar                   // x * A
	DivScalar                   // x / A
	DivInto                     // A / x
	MaxScalar                   // max(x, A), derivative 1/2 at A
	MinScalar                   // min(x, A), derivative 1/2 at A
	unaryEnd
)

// Unary is a function of one number with its parameters.
type Unary struct {
	Func UnaryFunc
	A, B float64 // the parameters of those that have some, such as the bounds of Clamp
}

// Binary names a function of two numbers.
type Binary uint8

const (
	Add     Binary = iota
	Sub            // a - b
	Mul            //
	Div            // a / b
	Maximum        // NaN if either is
	Minimum        // NaN if either is
	Greater        // 1 where a > b, 1/2 where a = b, else 0: the derivative of Maximum by a
	Equal          // 1 where a = b, else 0
	binaryEnd
)

// Reduction names a way to fold many numbers to one.
type Reduction uint8

const (
	Sum        Reduction = iota // accumulated in float64
	Mean                        // accumulated in float64
	SumSquares                  // accumulated in float64
	MeanSquare                  // accumulated in float64
	Max                         // NaN if any is
	Min                         // NaN if any is
	reductionEnd
)
