package device

import (
	"fmt"

	"github.com/lamina-go/lamina/tensor"
)

// The checks below are what every device asks of a kernel's arguments; a
// kernel calls its check first and may then rely on it.

func argError(op, arg string, got any, want string, kind error) error {
	return &tensor.ArgError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: want, Kind: kind}
}

type named struct {
	name string
	t    *tensor.Tensor
}

// checkPlaced reports a nil tensor, one that lies elsewhere, or an output that
// cannot be written. The first of the tensors is the output.
func checkPlaced(dev tensor.Device, op string, ts ...named) error {
	for _, n := range ts {
		if n.t == nil {
			return argError(op, n.name, "nil", "a tensor", tensor.ErrMissing)
		}
		if n.t.Device() != dev {
			return argError(op, n.name, n.t.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	if out := ts[0]; out.t.HasOverlap() {
		return argError(op, out.name, fmt.Sprintf("%v with strides %v", out.t.Shape(), out.t.Strides()), "one that reaches each element once", tensor.ErrAlias)
	}
	return nil
}

func checkSameShape(op string, ts ...named) error {
	for _, n := range ts[1:] {
		if !n.t.Shape().Equal(ts[0].t.Shape()) {
			return argError(op, n.name, n.t.Shape(), ts[0].t.Shape().String(), tensor.ErrShape)
		}
	}
	return nil
}

func checkFloat(op string, ts ...named) error {
	for _, n := range ts {
		if !n.t.DType().IsFloat() {
			return argError(op, n.name, n.t.DType(), "a floating-point type", tensor.ErrDType)
		}
	}
	return nil
}

// checkInPlace allows an output to be exactly one of the inputs, and no other overlap.
func checkInPlace(op string, out named, in ...named) error {
	for _, n := range in {
		if out.t.Overlaps(n.t) && !out.t.Is(n.t) {
			return argError(op, out.name, "another view of "+n.name+"'s memory", "memory of its own, or the same view", tensor.ErrAlias)
		}
	}
	return nil
}

func checkApart(op string, out named, in ...named) error {
	for _, n := range in {
		if out.t.Overlaps(n.t) {
			return argError(op, out.name, "in "+n.name+"'s memory", "memory of its own", tensor.ErrAlias)
		}
	}
	return nil
}

func checkElementwise(dev tensor.Device, op string, ts ...named) error {
	if err := checkPlaced(dev, op, ts...); err != nil {
		return err
	}
	if err := checkSameShape(op, ts...); err != nil {
		return err
	}
	return checkInPlace(op, ts[0], ts[1:]...)
}

// CheckFill checks the arguments of Fill.
func CheckFill(dev tensor.Device, out *tensor.Tensor) error {
	return checkPlaced(dev, "fill", named{"out", out})
}

// CheckUpload checks the arguments of Upload.
func CheckUpload(dev tensor.Device, dst, host *tensor.Tensor) error {
	return checkTransfer("upload", dev, tensor.CPU, dst, host)
}

// CheckDownload checks the arguments of Download.
func CheckDownload(dev tensor.Device, host, src *tensor.Tensor) error {
	return checkTransfer("download", tensor.CPU, dev, host, src)
}

func checkTransfer(op string, to, from tensor.Device, dst, src *tensor.Tensor) error {
	if err := checkPlaced(to, op, named{"destination", dst}); err != nil {
		return err
	}
	if src == nil {
		return argError(op, "source", "nil", "a tensor", tensor.ErrMissing)
	}
	if src.Device() != from {
		return argError(op, "source", src.Device(), from.String(), tensor.ErrDevice)
	}
	if dst.DType() != src.DType() {
		return argError(op, "destination", dst.DType(), src.DType().String(), tensor.ErrDType)
	}
	if err := checkSameShape(op, named{"source", src}, named{"destination", dst}); err != nil {
		return err
	}
	return checkInPlace(op, named{"destination", dst}, named{"source", src})
}

// CheckCopy checks the arguments of Copy.
func CheckCopy(dev tensor.Device, out, x *tensor.Tensor) error {
	if err := checkElementwise(dev, "copy", named{"out", out}, named{"x", x}); err != nil {
		return err
	}
	if out.DType().IsInt() && !x.DType().IsInt() {
		return argError("copy", "out", out.DType(), "a floating-point type for an x of "+x.DType().String(), tensor.ErrDType)
	}
	if out.Is(x) {
		return nil
	}
	return checkApart("copy", named{"out", out}, named{"x", x})
}

// CheckUnary checks the arguments of Unary, and of UnaryGrad if g is not nil.
func CheckUnary(dev tensor.Device, f Unary, out, x *tensor.Tensor) error {
	if f.Func >= unaryEnd {
		return argError("unary", "f", f.Func, "a function of this package", tensor.ErrValue)
	}
	if err := checkElementwise(dev, "unary", named{"out", out}, named{"x", x}); err != nil {
		return err
	}
	return checkFloat("unary", named{"out", out}, named{"x", x})
}

// CheckUnaryGrad checks the arguments of UnaryGrad.
func CheckUnaryGrad(dev tensor.Device, f Unary, out, g, x *tensor.Tensor) error {
	if err := CheckUnary(dev, f, out, x); err != nil {
		return err
	}
	if err := checkElementwise(dev, "unary gradient", named{"out", out}, named{"g", g}); err != nil {
		return err
	}
	return checkFloat("unary gradient", named{"g", g})
}

// CheckBinary checks the arguments of Binary.
func CheckBinary(dev tensor.Device, f Binary, out, a, b *tensor.Tensor) error {
	if f >= binaryEnd {
		return argError("binary", "f", f, "a function of this package", tensor.ErrValue)
	}
	if err := checkElementwise(dev, "binary", named{"out", out}, named{"a", a}, named{"b", b}); err != nil {
		return err
	}
	return checkFloat("binary", named{"out", out}, named{"a", a}, named{"b", b})
}

// CheckWhere checks the arguments of Where.
func CheckWhere(dev tensor.Device, out, cond, a, b *tensor.Tensor) error {
	if err := checkElementwise(dev, "where", named{"out", out}, named{"cond", cond}, named{"a", a}, named{"b", b}); err != nil {
		return err
	}
	if !cond.DType().IsInt() {
		return argError("where", "cond", cond.DType(), "an integer type", tensor.ErrDType)
	}
	return checkFloat("where", named{"out", out}, named{"a", a}, named{"b", b})
}

// CheckReduce checks the arguments of Reduce.
func CheckReduce(dev tensor.Device, f Reduction, out, x *tensor.Tensor) error {
	if f >= reductionEnd {
		return argError("reduce", "f", f, "a reduction of this package", tensor.ErrValue)
	}
	if err := checkPlaced(dev, "reduce", named{"out", out}, named{"x", x}); err != nil {
		return err
	}
	if out.Rank() != x.Rank() {
		return argError("reduce", "out", out.Shape(), fmt.Sprintf("as many axes as %v", x.Shape()), tensor.ErrRank)
	}
	for i, n := range x.Shape() {
		if d := out.Dim(i); d != n && d != 1 {
			return argError("reduce", "out", out.Shape(), fmt.Sprintf("the size of %v or 1 on each axis", x.Shape()), tensor.ErrShape)
		}
	}
	if x.Len() == 0 && out.Len() > 0 && f != Sum && f != SumSquares {
		return argError("reduce", "x", x.Shape(), "at least one element to fold", tensor.ErrShape)
	}
	if err := checkFloat("reduce", named{"out", out}, named{"x", x}); err != nil {
		return err
	}
	return checkApart("reduce", named{"out", out}, named{"x", x})
}

// CheckMatMul checks the arguments of MatMul.
func CheckMatMul(dev tensor.Device, out, a, b *tensor.Tensor) error {
	if err := checkPlaced(dev, "matmul", named{"out", out}, named{"a", a}, named{"b", b}); err != nil {
		return err
	}
	r := out.Rank()
	for _, n := range []named{{"out", out}, {"a", a}, {"b", b}} {
		if n.t.Rank() < 2 || n.t.Rank() != r {
			return argError("matmul", n.name, n.t.Shape(), "the same number of axes in all, at least 2", tensor.ErrRank)
		}
	}
	m, k, n := a.Dim(-2), a.Dim(-1), b.Dim(-1)
	if b.Dim(-2) != k {
		return argError("matmul", "b", b.Shape(), fmt.Sprintf("%d rows for an a of %v", k, a.Shape()), tensor.ErrShape)
	}
	if out.Dim(-2) != m || out.Dim(-1) != n {
		return argError("matmul", "out", out.Shape(), fmt.Sprintf("(...,%d,%d)", m, n), tensor.ErrShape)
	}
	for i := range r - 2 {
		if a.Dim(i) != out.Dim(i) || b.Dim(i) != out.Dim(i) {
			return argError("matmul", "out", out.Shape(), fmt.Sprintf("the leading axes of a %v and b %v", a.Shape(), b.Shape()), tensor.ErrShape)
		}
	}
	if err := checkFloat("matmul", named{"out", out}, named{"a", a}, named{"b", b}); err != nil {
		return err
	}
	return checkApart("matmul", named{"out", out}, named{"a", a}, named{"b", b})
}

// CheckMatMulBias checks the arguments of MatMulBias.
func CheckMatMulBias(dev tensor.Device, out, a, b, bias *tensor.Tensor) error {
	if err := CheckMatMul(dev, out, a, b); err != nil {
		return err
	}
	if bias == nil {
		return argError("matmul", "bias", "nil", "a tensor", tensor.ErrMissing)
	}
	if err := checkFloat("matmul", named{"bias", bias}); err != nil {
		return err
	}
	if err := checkApart("matmul", named{"out", out}, named{"bias", bias}); err != nil {
		return err
	}
	return checkLike("matmul", dev, named{"bias", bias}, out.Shape()[out.Rank()-1:], bias.DType())
}

func checkRows(dev tensor.Device, op string, out, table, rows, ids *tensor.Tensor) error {
	if err := checkPlaced(dev, op, named{"out", out}, named{"table", table}, named{"rows", rows}, named{"ids", ids}); err != nil {
		return err
	}
	if table.Rank() != 2 || rows.Rank() != 2 || ids.Rank() != 1 {
		return argError(op, "table, rows and ids", fmt.Sprintf("%v, %v and %v", table.Shape(), rows.Shape(), ids.Shape()), "(V,D), (n,D) and (n)", tensor.ErrRank)
	}
	if rows.Dim(0) != ids.Dim(0) || rows.Dim(1) != table.Dim(1) {
		return argError(op, "rows", rows.Shape(), fmt.Sprintf("(%d,%d)", ids.Dim(0), table.Dim(1)), tensor.ErrShape)
	}
	if !ids.DType().IsInt() {
		return argError(op, "ids", ids.DType(), "an integer type", tensor.ErrDType)
	}
	return checkFloat(op, named{"table", table}, named{"rows", rows})
}

// CheckGather checks the arguments of Gather but for the ids themselves.
func CheckGather(dev tensor.Device, out, table, ids *tensor.Tensor) error {
	if err := checkRows(dev, "gather", out, table, out, ids); err != nil {
		return err
	}
	return checkApart("gather", named{"out", out}, named{"table", table}, named{"ids", ids})
}

// CheckScatterAdd checks the arguments of ScatterAdd but for the ids themselves.
func CheckScatterAdd(dev tensor.Device, out, ids, x *tensor.Tensor) error {
	if err := checkRows(dev, "scatter-add", out, out, x, ids); err != nil {
		return err
	}
	return checkApart("scatter-add", named{"out", out}, named{"x", x}, named{"ids", ids})
}
