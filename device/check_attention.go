package device

import (
	"math"
	"strconv"

	"github.com/lamina-go/lamina/tensor"
)

// CheckAttention checks the arguments of the forward; out and lse may be nil.
func CheckAttention(at tensor.Device, a *AttentionArgs, out, lse *tensor.Tensor) error {
	const op = "attention"
	if a == nil {
		return argError(op, "arguments", "nil", "those of a call", tensor.ErrMissing)
	}
	names := []string{"q", "k", "v"}
	for i, x := range []*tensor.Tensor{a.Q, a.K, a.V} {
		if x == nil {
			return argError(op, names[i], "nil", "a tensor", tensor.ErrMissing)
		}
		if err := checkLies(op, names[i], at, x); err != nil {
			return err
		}
		if x.Rank() != 4 {
			return argError(op, names[i], x.Shape().String(), "(batch,heads,T,width)", tensor.ErrRank)
		}
		if !x.DType().IsFloat() || x.DType() != a.Q.DType() {
			return argError(op, names[i], x.DType().String(), "one floating-point type", tensor.ErrDType)
		}
	}
	q, k, v := a.Q.Shape(), a.K.Shape(), a.V.Shape()
	if k[0] != q[0] || k[3] != q[3] || k[1] == 0 || q[1]%k[1] != 0 {
		return argError(op, "k", k.String(), "batch, width and a divisor of the heads of a q of "+q.String(), tensor.ErrShape)
	}
	if v[0] != k[0] || v[1] != k[1] || v[2] != k[2] {
		return argError(op, "v", v.String(), "batch, heads and length of a k of "+k.String(), tensor.ErrShape)
	}
	if math.IsNaN(a.Scale) || math.IsInf(a.Scale, 0) {
		return argError(op, "scale", strconv.FormatFloat(a.Scale, 'g', -1, 64), "a finite number", tensor.ErrValue)
	}
	if err := checkAttentionResult(op, "out", at, out, a.Q.DType(), tensor.Shape{q[0], q[1], q[2], v[3]}); err != nil {
		return err
	}
	return checkAttentionResult(op, "lse", at, lse, tensor.Float64, q[:3])
}

// CheckAttentionBackward checks the arguments of the backward.
func CheckAttentionBackward(at tensor.Device, a *AttentionArgs, lse, gradOut, gradQ, gradK, gradV *tensor.Tensor) error {
	const op = "attention backward"
	for name, x := range map[string]*tensor.Tensor{"lse": lse, "grad_out": gradOut} {
		if x == nil {
			return argError(op, name, "nil", "a tensor", tensor.ErrMissing)
		}
	}
	if err := CheckAttention(at, a, nil, lse); err != nil {
		return err
	}
	d := a.Q.DType()
	if err := checkAttentionResult(op, "grad_out", at, gradOut, d, tensor.Shape{a.Q.Dim(0), a.Q.Dim(1), a.Q.Dim(2), a.V.Dim(3)}); err != nil {
		return err
	}
	for _, g := range []struct {
		name string
		grad *tensor.Tensor
		of   *tensor.Tensor
	}{{"grad_q", gradQ, a.Q}, {"grad_k", gradK, a.K}, {"grad_v", gradV, a.V}} {
		if err := checkAttentionResult(op, g.name, at, g.grad, d, g.of.Shape()); err != nil {
			return err
		}
	}
	return nil
}

func checkAttentionResult(op, name string, at tensor.Device, x *tensor.Tensor, d tensor.DType, shape tensor.Shape) error {
	switch {
	case x == nil:
		return nil
	case x.DType() != d:
		return argError(op, name, x.DType().String(), d.String(), tensor.ErrDType)
	case !x.Shape().Equal(shape):
		return argError(op, name, x.Shape().String(), shape.String(), tensor.ErrShape)
	case name != "grad_out" && x.HasOverlap():
		return argError(op, name, x.String(), "one that reaches each element once", tensor.ErrAlias)
	}
	return checkLies(op, name, at, x)
}

func checkLies(op, name string, at tensor.Device, x *tensor.Tensor) error {
	if x.Device() != at {
		return argError(op, name, x.Device(), at.String(), tensor.ErrDevice)
	}
	return nil
}
