package device

import (
	"fmt"
	"math"

	"github.com/lamina-go/lamina/tensor"
)

// CheckBlockAttnResForward checks the arguments of BlockAttnResForward; a nil
// out checks the inputs alone.
func CheckBlockAttnResForward(dev tensor.Device, a *BlockAttnResArgs, out *BlockAttnResOut) error {
	const op = "blockattnres"
	if err := checkBlockAttnResInputs(op, dev, a); err != nil || out == nil {
		return err
	}
	first := a.Blocks[0]
	b, t, l := first.Dim(0), first.Dim(1), len(a.Sources())
	if out.H == nil {
		return argError(op, "output", "nil", "a tensor", tensor.ErrMissing)
	}
	if out.RMS != nil && !a.RMSNorm {
		return argError(op, "rms_cache", "given without RMSNorm", "nil", tensor.ErrValue)
	}
	if out.H.DType() != first.DType() {
		return argError(op, "output", out.H.DType(), first.DType().String(), tensor.ErrDType)
	}
	o := outputs{op: op, dev: dev}
	o.add(part{"output", -1, out.H}, first.Shape())
	o.addCache(part{"rms_cache", -1, out.RMS}, tensor.Shape{b, t, l, 1})
	o.addCache(part{"alpha_cache", -1, out.Alpha}, tensor.Shape{b, t, l})
	return o.check(a.inputs())
}

// checkBlockAttnResInputs is what forward and backward have in common.
func checkBlockAttnResInputs(op string, dev tensor.Device, a *BlockAttnResArgs) error {
	if a == nil || len(a.Blocks) < 1 || len(a.Blocks) > 127 {
		n := 0
		if a != nil {
			n = len(a.Blocks)
		}
		return argError(op, "blocks", fmt.Sprintf("%d tensors", n), "1 to 127", tensor.ErrCount)
	}
	first := a.Blocks[0]
	for i, b := range a.Sources() {
		name := part{"blocks", i, b}
		if i == len(a.Blocks) {
			name = part{"partial_block", -1, b}
		}
		switch {
		case b == nil:
			return argError(op, name.String(), "nil", "a tensor", tensor.ErrMissing)
		case b.Rank() != 3:
			return argError(op, name.String(), b.Shape(), "(B,T,D)", tensor.ErrRank)
		case !b.Shape().Equal(first.Shape()):
			return argError(op, name.String(), b.Shape(), first.Shape().String(), tensor.ErrShape)
		case !b.DType().IsFloat():
			return argError(op, name.String(), b.DType(), "a floating-point type", tensor.ErrDType)
		case b.DType() != first.DType():
			return argError(op, name.String(), b.DType(), first.DType().String(), tensor.ErrDType)
		case b.Device() != dev:
			return argError(op, name.String(), b.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	d := first.Dim(2)
	if d == 0 {
		return argError(op, "blocks[0]", first.Shape(), "D of at least 1", tensor.ErrShape)
	}
	for _, w := range []named{{"proj_weight", a.ProjWeight}, {"rmsnorm_gamma", a.RMSNormGamma}} {
		switch {
		case w.t == nil && w.name == "rmsnorm_gamma" && !a.RMSNorm:
		case w.t == nil:
			return argError(op, w.name, "nil", "a tensor", tensor.ErrMissing)
		case w.t.Rank() != 1 || w.t.Dim(0) != d:
			return argError(op, w.name, w.t.Shape(), fmt.Sprintf("(%d)", d), tensor.ErrShape)
		case w.t.DType() != first.DType():
			return argError(op, w.name, w.t.DType(), first.DType().String(), tensor.ErrDType)
		case w.t.Device() != dev:
			return argError(op, w.name, w.t.Device(), dev.String(), tensor.ErrDevice)
		}
	}
	if math.IsNaN(a.Scale) || math.IsInf(a.Scale, 0) {
		return argError(op, "scale", a.Scale, "a finite number", tensor.ErrValue)
	}
	if !(a.Eps >= 0) || math.IsInf(a.Eps, 0) {
		return argError(op, "rmsnorm_eps", a.Eps, "a finite number of at least 0", tensor.ErrValue)
	}
	return nil
}

// part is one tensor of a call. Its name is made only when it is needed: there
// may be hundreds.
type part struct {
	name  string
	index int // among those of the name; -1 if it is the only one
	t     *tensor.Tensor
}

func (p part) String() string {
	if p.index < 0 {
		return p.name
	}
	return fmt.Sprintf("%s[%d]", p.name, p.index)
}

// inputs are all tensors of the arguments; absent ones are nil.
func (a *BlockAttnResArgs) inputs() []part {
	in := make([]part, 0, len(a.Blocks)+6)
	for i, b := range a.Blocks {
		in = append(in, part{"blocks", i, b})
	}
	return append(in, part{"partial_block", -1, a.PartialBlock}, part{"proj_weight", -1, a.ProjWeight}, part{"rmsnorm_gamma", -1, a.RMSNormGamma})
}

// outputs are the tensors that a call writes, absent ones left out; the first
// failure is kept.
type outputs struct {
	op   string
	dev  tensor.Device
	list []part
	err  error
}

func (o *outputs) add(p part, shape tensor.Shape) {
	if p.t == nil || o.err != nil {
		return
	}
	switch {
	case !p.t.Shape().Equal(shape):
		o.err = argError(o.op, p.String(), p.t.Shape(), shape.String(), tensor.ErrShape)
	case !p.t.DType().IsFloat():
		o.err = argError(o.op, p.String(), p.t.DType(), "a floating-point type", tensor.ErrDType)
	case p.t.Device() != o.dev:
		o.err = argError(o.op, p.String(), p.t.Device(), o.dev.String(), tensor.ErrDevice)
	case p.t.HasOverlap():
		o.err = checkPlaced(o.dev, o.op, named{p.String(), p.t})
	}
	o.list = append(o.list, p)
}

func (o *outputs) addCache(p part, shape tensor.Shape) {
	if p.t != nil && o.err == nil {
		o.err = checkCache(o.op, p)
	}
	o.add(p, shape)
}

func checkCache(op string, p part) error {
	if d := p.t.DType(); d != tensor.Float32 && d != tensor.Float64 {
		return argError(op, p.String(), d, "float32 or float64", tensor.ErrDType)
	}
	return nil
}

// check reports an output in the memory of an input or of another output.
func (o *outputs) check(in []part) error {
	for i, out := range o.list {
		for _, others := range [][]part{o.list[:i], in} {
			for _, p := range others {
				if o.err == nil && out.t.Overlaps(p.t) {
					o.err = argError(o.op, out.String(), "in the memory of "+p.String(), "memory of its own", tensor.ErrAlias)
				}
			}
		}
	}
	return o.err
}

// CheckBlockAttnResBackward checks the arguments of BlockAttnResBackward.
func CheckBlockAttnResBackward(dev tensor.Device, a *BlockAttnResArgs, saved *BlockAttnResOut, gradH *tensor.Tensor, grads *BlockAttnResGrads) error {
	const op = "blockattnres backward"
	if err := checkBlockAttnResInputs(op, dev, a); err != nil {
		return err
	}
	first := a.Blocks[0]
	b, t, l := first.Dim(0), first.Dim(1), len(a.Sources())
	switch {
	case gradH == nil:
		return argError(op, "grad_h", "nil", "a tensor", tensor.ErrMissing)
	case !gradH.Shape().Equal(first.Shape()):
		return argError(op, "grad_h", gradH.Shape(), first.Shape().String(), tensor.ErrShape)
	case gradH.DType() != first.DType():
		return argError(op, "grad_h", gradH.DType(), first.DType().String(), tensor.ErrDType)
	case saved == nil || saved.Alpha == nil:
		return argError(op, "alpha_cache", "nil", "the cache of the forward", tensor.ErrMissing)
	case !saved.Alpha.Shape().Equal(tensor.Shape{b, t, l}):
		return argError(op, "alpha_cache", saved.Alpha.Shape(), fmt.Sprintf("(%d,%d,%d)", b, t, l), tensor.ErrShape)
	case gradH.Device() != dev:
		return argError(op, "grad_h", gradH.Device(), dev.String(), tensor.ErrDevice)
	case saved.Alpha.Device() != dev:
		return argError(op, "alpha_cache", saved.Alpha.Device(), dev.String(), tensor.ErrDevice)
	case a.RMSNorm && saved.RMS == nil:
		return argError(op, "rms_cache", "nil", "the cache of the forward", tensor.ErrMissing)
	case a.RMSNorm && !saved.RMS.Shape().Equal(tensor.Shape{b, t, l, 1}):
		return argError(op, "rms_cache", saved.RMS.Shape(), fmt.Sprintf("(%d,%d,%d,1)", b, t, l), tensor.ErrShape)
	case a.RMSNorm && saved.RMS.Device() != dev:
		return argError(op, "rms_cache", saved.RMS.Device(), dev.String(), tensor.ErrDevice)
	case grads == nil:
		return argError(op, "gradients", "nil", "where to write them", tensor.ErrMissing)
	case len(grads.Blocks) != 0 && len(grads.Blocks) != len(a.Blocks):
		return argError(op, "grad_blocks", fmt.Sprintf("%d tensors", len(grads.Blocks)), fmt.Sprintf("none or %d", len(a.Blocks)), tensor.ErrCount)
	case len(grads.Add) != 0 && len(grads.Add) != l:
		return argError(op, "add", fmt.Sprintf("%d values", len(grads.Add)), fmt.Sprintf("none or %d", l), tensor.ErrCount)
	case grads.PartialBlock != nil && a.PartialBlock == nil:
		return argError(op, "grad_partial_block", "given", "nil without a partial block", tensor.ErrValue)
	case grads.RMSNormGamma != nil && !a.RMSNorm:
		return argError(op, "grad_rmsnorm_gamma", "given", "nil without RMSNorm", tensor.ErrValue)
	}
	in := append(a.inputs(), part{"grad_h", -1, gradH})
	caches := []part{{"alpha_cache", -1, saved.Alpha}}
	if a.RMSNorm {
		caches = append(caches, part{"rms_cache", -1, saved.RMS})
	}
	for _, c := range caches {
		if err := checkCache(op, c); err != nil {
			return err
		}
	}
	in = append(in, caches...)
	o := outputs{op: op, dev: dev}
	for i, g := range grads.Blocks {
		o.add(part{"grad_blocks", i, g}, first.Shape())
	}
	o.add(part{"grad_partial_block", -1, grads.PartialBlock}, first.Shape())
	o.add(part{"grad_proj_weight", -1, grads.ProjWeight}, first.Shape()[2:])
	o.add(part{"grad_rmsnorm_gamma", -1, grads.RMSNormGamma}, first.Shape()[2:])
	return o.check(in)
}
