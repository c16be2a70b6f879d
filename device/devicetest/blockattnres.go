package devicetest

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/device"
)

// blockAttnRes compares the fused operator with its definition and chain rule,
// in float64.
func (s *suite) blockAttnRes(t *testing.T, dev device.BlockAttnRes) {
	for _, d := range floats {
		for _, c := range []struct {
			b, t, n, d      int
			partial, norm   bool
			scale, eps      float64
			layout          string
			rowSmall, rowLg float64
		}{
			{2, 3, 4, 7, true, true, -0.7, 1e-6, "dense", 1, 1},
			{1, 5, 3, 33, false, true, 3, 1e-6, "sliced", 1e-2, 1e2},
			{2, 2, 3, 5, true, false, 0.5, 0, "permuted", 1, 1},
			{1, 1, 1, 1, false, true, 1, 1e-5, "dense", 1, 1},
			{1, 2, 25, 64, true, true, 0, 1e-6, "dense", 1, 1},
			{1, 2, 127, 16, true, true, 1, 1e-6, "dense", 1, 1},
			{0, 3, 2, 4, true, true, 1, 1e-6, "dense", 1, 1},
		} {
			t.Run(fmt.Sprintf("%v_%dx%dx%dx%d_%s", d, c.b, c.t, c.n, c.d, c.layout), func(t *testing.T) {
				a := &device.BlockAttnResArgs{Scale: c.scale, Eps: c.eps, RMSNorm: c.norm}
				var rows []operand
				for i := range c.n {
					size := c.rowSmall + (c.rowLg-c.rowSmall)*float64(i)/float64(max(c.n-1, 1))
					rows = append(rows, s.place(t, d, c.layout, s.numbers(c.b*c.t*c.d, -2*size, 2*size), c.b, c.t, c.d))
					a.Blocks = append(a.Blocks, rows[i].Tensor)
				}
				if c.partial {
					rows = append(rows, s.place(t, d, c.layout, s.numbers(c.b*c.t*c.d, -2, 2), c.b, c.t, c.d))
					a.PartialBlock = rows[c.n].Tensor
				}
				w := s.place(t, d, "dense", s.numbers(c.d, -0.5, 0.5), c.d)
				a.ProjWeight = w.Tensor
				gamma := operand{x: make([]float64, c.d)}
				for i := range gamma.x {
					gamma.x[i] = 1
				}
				if c.norm {
					gamma = s.place(t, d, "dense", s.numbers(c.d, -1.5, 1.5), c.d)
					a.RMSNormGamma = gamma.Tensor
				}
				g := s.place(t, d, c.layout, s.numbers(c.b*c.t*c.d, -1, 1), c.b, c.t, c.d)
				cache := d.Wide()
				out := &device.BlockAttnResOut{H: s.empty(t, d, c.layout, c.b, c.t, c.d), Alpha: s.empty(t, cache, "dense", c.b, c.t, len(rows))}
				if c.norm {
					out.RMS = s.empty(t, cache, "dense", c.b, c.t, len(rows), 1)
				}
				err := dev.BlockAttnResForward(ctx, a, out)
				if errors.Is(err, errors.ErrUnsupported) { // no device of this module declines; one that does falls back to small ops, which are tested
					t.Skip("declined by the device, which the contract allows:", err)
				}
				must(t, err)
				grads := &device.BlockAttnResGrads{ProjWeight: s.empty(t, d, "dense", c.d)}
				for range c.n {
					grads.Blocks = append(grads.Blocks, s.empty(t, d, c.layout, c.b, c.t, c.d))
				}
				if c.partial {
					grads.PartialBlock = s.empty(t, d, c.layout, c.b, c.t, c.d)
				}
				if c.norm {
					grads.RMSNormGamma = s.empty(t, d, "dense", c.d)
				}
				must(t, dev.BlockAttnResBackward(ctx, a, out, g.Tensor, grads))
				want := definition(rows, w.x, gamma.x, g.x, c.b*c.t, c.d, c.scale, c.eps, c.norm)
				terms := 4 * c.rowLg
				s.check(t, "output", out.H, want.h, terms)
				s.check(t, "alpha_cache", out.Alpha, want.alpha, 1)
				if c.norm {
					s.check(t, "rms_cache", out.RMS, want.rms, 1)
					s.check(t, "grad_rmsnorm_gamma", grads.RMSNormGamma, want.gamma, terms*float64(c.b*c.t))
				}
				s.check(t, "grad_proj_weight", grads.ProjWeight, want.w, terms*float64(c.b*c.t))
				for i := range c.n {
					s.check(t, fmt.Sprintf("grad_blocks[%d]", i), grads.Blocks[i], want.v[i], terms)
				}
				if c.partial {
					s.check(t, "grad_partial_block", grads.PartialBlock, want.v[c.n], terms)
				}
			})
		}
	}
}

type answers struct {
	h, rms, alpha, w, gamma []float64
	v                       [][]float64
}

// definition is the operator token by token: keys, logits, softmax, sum, and
// the chain rule through each of them.
func definition(rows []operand, w, gamma, g []float64, tokens, d int, scale, eps float64, norm bool) answers {
	l := len(rows)
	a := answers{w: make([]float64, d), gamma: make([]float64, d), v: make([][]float64, l)}
	for i := range a.v {
		a.v[i] = make([]float64, tokens*d)
	}
	for t := range tokens {
		alpha, rms, key := make([]float64, l), make([]float64, l), make([][]float64, l)
		top := math.Inf(-1)
		for i, r := range rows {
			v := r.x[t*d : (t+1)*d]
			rms[i] = 1
			if norm {
				ss := 0.0
				for _, x := range v {
					ss += x * x
				}
				rms[i] = math.Sqrt(ss/float64(d) + eps)
			}
			key[i] = make([]float64, d)
			for j, x := range v {
				key[i][j] = x / rms[i] * gamma[j]
				alpha[i] += scale * key[i][j] * w[j]
			}
			top = math.Max(top, alpha[i])
		}
		total := 0.0
		for i := range alpha {
			alpha[i] = math.Exp(alpha[i] - top)
			total += alpha[i]
		}
		h := make([]float64, d)
		da := make([]float64, l)
		mean := 0.0
		for i, r := range rows {
			alpha[i] /= total
			for j, x := range r.x[t*d : (t+1)*d] {
				h[j] += alpha[i] * x
				da[i] += g[t*d+j] * x
			}
			mean += alpha[i] * da[i]
		}
		for i, r := range rows {
			v := r.x[t*d : (t+1)*d]
			ds := alpha[i] * (da[i] - mean)
			along := 0.0
			for j := range d {
				dk := ds * scale * w[j]
				a.w[j] += ds * scale * key[i][j]
				a.gamma[j] += dk * v[j] / rms[i]
				along += gamma[j] * dk * v[j]
			}
			for j := range d {
				dk := ds * scale * w[j]
				dv := dk
				if norm {
					dv = gamma[j]*dk/rms[i] - v[j]*along/(float64(d)*rms[i]*rms[i]*rms[i])
				}
				a.v[i][t*d+j] = alpha[i]*g[t*d+j] + dv
			}
		}
		a.h, a.alpha, a.rms = append(a.h, h...), append(a.alpha, alpha...), append(a.rms, rms...)
	}
	return a
}
