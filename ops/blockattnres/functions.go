package blockattnres

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

const op = "blockattnres"

// Tensors are the operands without a tape, of one floating-point dtype.
type Tensors struct {
	Blocks       []*tensor.Tensor // N of (B,T,D), 1 <= N <= 127
	PartialBlock *tensor.Tensor   // (B,T,D) or nil
	ProjWeight   *tensor.Tensor   // (D) or (1,D)
	RMSNormGamma *tensor.Tensor   // (D) or (1,D); nil only without RMSNorm
}

// Caches says which caches Forward returns. RMS needs RMSNorm.
type Caches struct{ RMS, Alpha bool }

// Outputs are the results of Forward.
type Outputs = device.BlockAttnResOut

// Grads are the results of Backward.
type Grads = device.BlockAttnResGrads

// args is what the kernel takes: weights of (1,D) become (D).
func (in Tensors) args(o options) (*device.BlockAttnResArgs, error) {
	a := &device.BlockAttnResArgs{Blocks: in.Blocks, PartialBlock: in.PartialBlock, ProjWeight: in.ProjWeight, RMSNormGamma: in.RMSNormGamma,
		Scale: o.scale, Eps: o.eps, RMSNorm: o.rmsNorm}
	for _, w := range []**tensor.Tensor{&a.ProjWeight, &a.RMSNormGamma} {
		if (*w).Rank() == 2 && (*w).Dim(0) == 1 {
			row, err := (*w).Select(0, 0)
			if err != nil {
				return nil, err
			}
			*w = row
		}
	}
	return a, nil
}

// cacheDType is float32, or float64 for float64 operands.
func cacheDType(d tensor.DType) tensor.DType { return d.Wide() }

func makeOutputs(s *device.Stream, a *device.BlockAttnResArgs, caches Caches) *Outputs {
	x := a.Blocks[0]
	b, t, l := x.Dim(0), x.Dim(1), len(a.Sources())
	out := &Outputs{H: s.Empty(x.DType(), x.Shape()...)}
	if caches.RMS {
		out.RMS = s.Empty(cacheDType(x.DType()), b, t, l, 1)
	}
	if caches.Alpha {
		out.Alpha = s.Empty(cacheDType(x.DType()), b, t, l)
	}
	return out
}

func fused(dev device.Device) (device.BlockAttnRes, error) {
	f, ok := dev.(device.BlockAttnRes)
	if !ok {
		return nil, fmt.Errorf("%s: device %v has no fused kernel: %w", op, dev.Name(), errors.ErrUnsupported)
	}
	return f, nil
}

// Forward is the operator document's forward: h and, where asked for, the
// caches. The results are owned by s. A wrong argument is a *tensor.ArgError
// that names it; a device without the fused kernel gives an error that wraps
// errors.ErrUnsupported.
func Forward(s *device.Stream, in Tensors, caches Caches, opts ...Option) (*Outputs, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	o := resolve(opts)
	a, err := in.args(o)
	if err != nil {
		return nil, err
	}
	if err := device.CheckBlockAttnResForward(s.Device().Name(), a, nil); err != nil {
		return nil, err
	}
	if caches.RMS && !o.rmsNorm {
		return nil, &tensor.ArgError{Op: op, Arg: "rms_out_flag", Got: "set without RMSNorm", Want: "RMSNorm on", Kind: tensor.ErrValue}
	}
	f, err := fused(s.Device())
	if err != nil {
		return nil, err
	}
	out := makeOutputs(s, a, caches)
	s.Run(func(ctx context.Context, _ device.Device) error { return f.BlockAttnResForward(ctx, a, out) })
	if err := s.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// Backward is the operator document's backward: all gradients from gradH,
// (B,T,D), and the caches of Forward. RMSNormGamma is nil without RMSNorm, and
// weight gradients are (D). The results are owned by s. The scale and RMSNorm
// options must be those of Forward. Eps is in the rms cache and need not be
// given again, with one exception: an rms that the float32 cache cannot hold (an
// eps of 1e77 or more) is taken as infinite, so that keys are 0, unless the
// Eps that made it is given.
func Backward(s *device.Stream, gradH *tensor.Tensor, in Tensors, alpha, rms *tensor.Tensor, opts ...Option) (*Grads, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	o := resolve(opts)
	a, err := in.args(o)
	if err != nil {
		return nil, err
	}
	saved := &Outputs{Alpha: alpha, RMS: rms}
	if err := device.CheckBlockAttnResBackward(s.Device().Name(), a, saved, gradH, &Grads{}); err != nil {
		return nil, err
	}
	if d := cacheDType(a.Blocks[0].DType()); alpha.DType() != d || o.rmsNorm && rms.DType() != d {
		arg, got := "alpha_cache", alpha.DType()
		if got == d {
			arg, got = "rms_cache", rms.DType()
		}
		return nil, &tensor.ArgError{Op: op + " backward", Arg: arg, Got: got.String(), Want: d.String(), Kind: tensor.ErrDType}
	}
	f, err := fused(s.Device())
	if err != nil {
		return nil, err
	}
	x := a.Blocks[0]
	g := &Grads{ProjWeight: s.Empty(x.DType(), x.Dim(2))}
	for range a.Blocks {
		g.Blocks = append(g.Blocks, s.Empty(x.DType(), x.Shape()...))
	}
	if a.PartialBlock != nil {
		g.PartialBlock = s.Empty(x.DType(), x.Shape()...)
	}
	if o.rmsNorm {
		g.RMSNormGamma = s.Empty(x.DType(), x.Dim(2))
	}
	s.Run(func(ctx context.Context, _ device.Device) error {
		return f.BlockAttnResBackward(ctx, a, saved, gradH, g)
	})
	if err := s.Err(); err != nil {
		return nil, err
	}
	return g, nil
}
