package ops

import (
	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// Dropout sets each element to 0 with probability p, 0 <= p < 1, and multiplies
// the others by 1/(1-p) (Srivastava et al., 2014). Which elements is a function
// of the source alone, element i of x in row-major order using its i-th number,
// so that a step can be repeated exactly; give each use another stream.
func Dropout(x *autograd.Var, p float64, source random.Source) *autograd.Var {
	t, ok := begin("dropout", x)
	if !ok {
		return t.Dead()
	}
	if !(p >= 0 && p < 1) {
		return fail(t, "dropout", "p", number(p), "0 <= p < 1", tensor.ErrValue)
	}
	if !fits(t, "dropout", "x", x.Shape(), x.Tensor().Len(), 8) {
		return t.Dead()
	}
	kept := make([]float64, x.Tensor().Len())
	for i := range kept {
		if stopped(t, i) {
			return t.Dead()
		}
		if source.Float64(uint64(i)) >= p {
			kept[i] = 1 / (1 - p)
		}
	}
	n := &dropout{kept: uploadFloats(t, x.DType().Wide(), kept, x.Shape()...), dtype: x.DType()}
	return t.Record(t.Binary(device.Mul, x.DType(), x.Tensor(), n.kept), n, x)
}

type dropout struct {
	kept  *tensor.Tensor // 0 or 1/(1-p)
	dtype tensor.DType
}

func (n *dropout) Backward(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{s.Binary(device.Mul, n.dtype, g, n.kept)}
}
