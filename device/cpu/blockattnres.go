package cpu

import (
	"context"
	"math"
	"sync"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.BlockAttnRes = (*Device)(nil)

// The operator works token by token. A row, one source at one token, is widened
// to float64 in a scratch of D numbers each time it is read; for the usual L and
// D a token's rows are still in the second-level cache when they are read again.
// All arithmetic is in float64: squares and dot products of narrower formats
// cannot over- or underflow there, and the products of 16-bit rows with
// u = gamma * w are exact, fused or not.

// maxChunks bounds the partial sums over tokens; chunks follow from the shape alone.
const maxChunks = 64

// source is a (B,T,D) tensor ready to be read or written row by row.
type source struct {
	bytes      []byte
	dtype      tensor.DType
	at         int // of element (0,0,0)
	sb, st, sd int // strides
}

func sourceOf(t *tensor.Tensor) (source, error) {
	b, err := bytesOf(t)
	if err != nil {
		return source{}, err
	}
	st := t.Strides()
	s := source{bytes: b, dtype: t.DType(), at: t.Offset(), sd: 1}
	switch len(st) {
	case 1: // a weight: one row
		s.sd = st[0]
	default: // (B,T,D), or a cache (B,T,L) or (B,T,L,1)
		s.sb, s.st, s.sd = st[0], st[1], st[2]
	}
	return s, nil
}

func (s source) load(dst []float64, b, t int) {
	load(dst, s.bytes, s.dtype, s.at+b*s.sb+t*s.st, s.sd)
}
func (s source) store(b, t int, src []float64) {
	at := s.at + b*s.sb + t*s.st
	if s.dtype == tensor.BFloat16 && s.sd == 1 {
		storeBFloat16Row(elems[uint16](s.bytes)[at:], src)
		return
	}
	store(s.bytes, s.dtype, at, s.sd, src)
}

// storeBFloat16Row is store where most of the time goes: the rounding of
// tensor.BFloat16FromFloat64 without a call for each element.
func storeBFloat16Row(dst []uint16, src []float64) {
	dst = dst[:len(src)]
	for i, x := range src {
		b := math.Float64bits(x)
		m := b &^ (1 << 63)
		if m-(1023-126)<<52 < (126+128)<<52 { // a normal bfloat16
			dst[i] = uint16(b>>48)&0x8000 | uint16((m+(1<<44-1)+m>>45&1)>>45-(1023-127)<<7)
			continue
		}
		dst[i] = tensor.BFloat16FromFloat64(x)
	}
}

func sourcesOf(ts []*tensor.Tensor) ([]source, error) {
	out := make([]source, len(ts))
	for i, t := range ts {
		if t == nil {
			continue // a gradient that is not wanted
		}
		var err error
		if out[i], err = sourceOf(t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// attnRes is what the tokens of one call share.
type attnRes struct {
	rows    []source // L of them
	tokens  int      // B*T
	steps   int      // T
	width   int      // D
	w       []float64
	gamma   []float64 // nil without RMSNorm
	u       []float64 // gamma * w, or w
	scale   float64
	eps     float64
	norm    bool
	extreme bool // float64 rows, whose squares may over- or underflow
}

func newAttnRes(a *device.BlockAttnResArgs) (*attnRes, error) {
	x := a.Blocks[0]
	r := &attnRes{tokens: x.Dim(0) * x.Dim(1), steps: x.Dim(1), width: x.Dim(2), scale: a.Scale, eps: a.Eps, norm: a.RMSNorm, extreme: x.DType() == tensor.Float64}
	var err error
	if r.rows, err = sourcesOf(a.Sources()); err != nil {
		return nil, err
	}
	weight := func(t *tensor.Tensor) ([]float64, error) {
		s, err := sourceOf(t)
		v := make([]float64, r.width)
		if err == nil {
			s.load(v, 0, 0)
		}
		return v, err
	}
	if r.w, err = weight(a.ProjWeight); err != nil {
		return nil, err
	}
	r.u = r.w
	if r.norm {
		if r.gamma, err = weight(a.RMSNormGamma); err != nil {
			return nil, err
		}
		r.u = make([]float64, r.width)
		for i, g := range r.gamma {
			r.u[i] = g * r.w[i]
		}
	}
	return r, nil
}

// chunks cuts the tokens into at most maxChunks runs of equal length.
func (r *attnRes) chunks() (count, length int) {
	length = max(1, (r.tokens+maxChunks-1)/maxChunks)
	return (r.tokens + length - 1) / length, length
}

// each calls do for the tokens of a chunk until ctx is cancelled.
func (r *attnRes) each(ctx context.Context, chunk, length int, do func(b, t int)) {
	for i := chunk * length; i < min((chunk+1)*length, r.tokens); i++ {
		if i%8 == 0 && ctx.Err() != nil {
			return
		}
		do(i/r.steps, i%r.steps)
	}
}

// attnScratch is one worker's memory: a few rows and a few numbers for each source.
type attnScratch struct {
	v, h, g                   []float64 // D
	logit, alpha, da, ds, rms []float64 // L
	exp                       []int     // L
}

var attnScratches sync.Pool

func getAttnScratch(l, d int) *attnScratch {
	s, _ := attnScratches.Get().(*attnScratch)
	if s == nil || cap(s.v) < d || cap(s.logit) < l {
		s = &attnScratch{}
		for _, x := range []*[]float64{&s.v, &s.h, &s.g} {
			*x = make([]float64, d)
		}
		for _, x := range []*[]float64{&s.logit, &s.alpha, &s.da, &s.ds, &s.rms} {
			*x = make([]float64, l)
		}
		s.exp = make([]int, l)
	}
	for _, x := range []*[]float64{&s.v, &s.h, &s.g} {
		*x = (*x)[:d]
	}
	for _, x := range []*[]float64{&s.logit, &s.alpha, &s.da, &s.ds, &s.rms} {
		*x = (*x)[:l]
	}
	s.exp = s.exp[:l]
	return s
}

// dot sums a[i]*b[i] in eight lanes by index mod 8: the canonical order.
func dot(a, b []float64) float64 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float64
	b = b[:len(a)]
	for len(a) >= 8 && len(b) >= 8 {
		s0 += float64(a[0] * b[0])
		s1 += float64(a[1] * b[1])
		s2 += float64(a[2] * b[2])
		s3 += float64(a[3] * b[3])
		s4 += float64(a[4] * b[4])
		s5 += float64(a[5] * b[5])
		s6 += float64(a[6] * b[6])
		s7 += float64(a[7] * b[7])
		a, b = a[8:], b[8:]
	}
	lanes := [8]float64{s0, s1, s2, s3, s4, s5, s6, s7}
	for i, x := range a {
		lanes[i] += float64(x * b[i])
	}
	return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
}

// key is the logit of a row, and its rms where the keys are normalised. It may
// scale v.
func (r *attnRes) key(v []float64) (logit, rms float64) {
	if !r.norm {
		return r.scale * dot(v, r.u), 1
	}
	ss := dot(v, v)
	if r.extreme && !(ss > 1e-250 && ss < 1e250) {
		exp, rms := r.rescale(v)
		return r.scale * (dot(v, r.u) / rms), math.Ldexp(rms, exp)
	}
	rms = math.Sqrt(ss/float64(r.width) + r.eps)
	return r.scale * (dot(v, r.u) / rms), rms
}

// rescale divides a row whose squares leave float64 by 2^exp, so that the
// larger of its largest element and the root of eps is about 1, and gives the
// rms of the scaled row: that of the row is rms * 2^exp.
func (r *attnRes) rescale(v []float64) (exp int, rms float64) {
	exp = exponent(max(largest(v), math.Sqrt(r.eps)))
	ldexp(v, -exp)
	return exp, math.Sqrt(dot(v, v)/float64(r.width) + math.Ldexp(r.eps, -2*exp))
}

// largest is the largest |x|, NaN if there is a NaN.
func largest(v []float64) (top float64) {
	for _, x := range v {
		top = max(top, math.Abs(x))
	}
	return top
}

// exponent is that of x, for scaling; what cannot be scaled has 0.
func exponent(x float64) int {
	if x == 0 || !(x <= math.MaxFloat64) {
		return 0
	}
	_, exp := math.Frexp(x)
	return exp
}

// topExponent is the largest exponent of a source that has weight.
func topExponent(exp []int, alpha []float64) int {
	top, found := 0, false
	for l, e := range exp {
		if alpha[l] > 0 && (e > top || !found) {
			top, found = e, true
		}
	}
	return top
}

// ldexp multiplies by 2^exp.
func ldexp(v []float64, exp int) {
	if exp == 0 {
		return
	}
	for i, x := range v {
		v[i] = math.Ldexp(x, exp)
	}
}

// BlockAttnResForward: h = sum_l alpha_l v_l, alpha = softmax_l(scale w . k_l).
func (d *Device) BlockAttnResForward(ctx context.Context, a *device.BlockAttnResArgs, out *device.BlockAttnResOut) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if out == nil {
		out = &device.BlockAttnResOut{}
	}
	if err := device.CheckBlockAttnResForward(d.Name(), a, out); err != nil {
		return err
	}
	r, err := newAttnRes(a)
	if err != nil {
		return err
	}
	to, err := sourcesOf([]*tensor.Tensor{out.H, out.RMS, out.Alpha})
	if err != nil {
		return err
	}
	chunks, length := r.chunks()
	err = d.run(ctx, chunks, func(chunk int) {
		s := getAttnScratch(len(r.rows), r.width)
		defer attnScratches.Put(s)
		r.each(ctx, chunk, length, func(b, t int) {
			top := math.Inf(-1)
			for l, row := range r.rows {
				row.load(s.v, b, t)
				s.logit[l], s.rms[l] = r.key(s.v)
				if s.logit[l] > top || s.logit[l] != s.logit[l] {
					top = s.logit[l]
				}
			}
			var total float64
			for l, x := range s.logit {
				s.alpha[l] = elementary.Exp(x - top)
				total += s.alpha[l]
			}
			clear(s.h)
			for l, row := range r.rows {
				s.alpha[l] /= total
				row.load(s.v, b, t)
				if l == 0 {
					for i, x := range s.v { // not 0 + x: the sign of a zero survives
						s.h[i] = s.alpha[0] * x
					}
					continue
				}
				addScaled(s.h, s.alpha[l], s.v)
			}
			to[0].store(b, t, s.h)
			if out.RMS != nil {
				to[1].store(b, t, s.rms)
			}
			if out.Alpha != nil {
				to[2].store(b, t, s.alpha)
			}
		})
	})
	for _, t := range []*tensor.Tensor{out.H, out.RMS, out.Alpha} {
		if t != nil {
			t.Memory().Written()
		}
	}
	return err
}

// addScaled: y += c x.
func addScaled(y []float64, c float64, x []float64) {
	x = x[:len(y)]
	for i := range y {
		y[i] += float64(c * x[i])
	}
}

// BlockAttnResBackward, with u = gamma * w, or w without RMSNorm:
//
//	da_l = g . v_l
//	ds_l = alpha_l (da_l - sum_j alpha_j da_j)
//	dv_l = alpha_l g + ds_l (scale u/rms_l - v_l logit_l/(D rms_l^2))
//	q    = sum over b,t,l of ds_l/rms_l v_l
//	dw   = scale gamma * q,  dgamma = scale w * q
//
// In float64 the products g . v_l may over- or underflow where the gradients do
// not, and a cache may be too narrow for an rms. Such rows, and such a g, are
// divided by powers of two: v_l by 2^exp_l and da_l, ds_l by 2^shift. For all
// others exp_l and shift are 0.
func (d *Device) BlockAttnResBackward(ctx context.Context, a *device.BlockAttnResArgs, saved *device.BlockAttnResOut, gradH *tensor.Tensor, grads *device.BlockAttnResGrads) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if grads == nil {
		grads = &device.BlockAttnResGrads{}
	}
	if err := device.CheckBlockAttnResBackward(d.Name(), a, saved, gradH, grads); err != nil {
		return err
	}
	r, err := newAttnRes(a)
	if err != nil {
		return err
	}
	wanted := make([]*tensor.Tensor, len(r.rows)) // the gradient of each source, nil where not wanted
	copy(wanted, grads.Blocks)
	if a.PartialBlock != nil {
		wanted[len(a.Blocks)] = grads.PartialBlock
	}
	to, err := sourcesOf(wanted)
	if err != nil {
		return err
	}
	rms := saved.RMS
	if !r.norm {
		rms = nil
	}
	from, err := sourcesOf([]*tensor.Tensor{gradH, saved.Alpha, rms})
	if err != nil {
		return err
	}
	// Within these bounds a cached rms is exact enough, and squares of rms are in float64.
	least, most := 0x1p-126, math.MaxFloat32
	if r.norm && rms.DType() == tensor.Float64 {
		least, most = 1e-125, 1e125
	}
	weights := grads.ProjWeight != nil || grads.RMSNormGamma != nil
	chunks, length := r.chunks()
	var q []float64 // a row of partial sums for each chunk
	if weights {
		mem, err := d.Alloc(chunks * r.width * 8)
		if err != nil {
			return err
		}
		defer d.Free(mem)
		q = elems[float64](mem.(*tensor.Host).Bytes())
		clear(q)
	}
	err = d.run(ctx, chunks, func(chunk int) {
		s := getAttnScratch(len(r.rows), r.width)
		defer attnScratches.Put(s)
		var sum []float64
		if weights {
			sum = q[chunk*r.width : (chunk+1)*r.width]
		}
		r.each(ctx, chunk, length, func(b, t int) {
			from[0].load(s.g, b, t)
			from[1].load(s.alpha, b, t)
			for l := range s.rms {
				s.rms[l] = 1
			}
			if r.norm {
				from[2].load(s.rms, b, t)
			}
			g, shift := s.g, 0
			if r.extreme {
				if e := exponent(largest(g)); e > 300 || e < -300 {
					shift = e
					g = s.h
					copy(g, s.g)
					ldexp(g, -e)
				}
			}
			for l, row := range r.rows {
				row.load(s.v, b, t)
				s.exp[l] = 0
				if r.norm {
					if x := s.rms[l]; !(x >= least && x <= most) {
						s.exp[l], s.rms[l] = r.rescale(s.v)
					}
					s.logit[l] = r.scale * (dot(s.v, r.u) / s.rms[l])
				}
				s.da[l] = dot(s.v, g)
			}
			// The cached weights are rounded, so they add up to 1 only nearly: the mean is divided by their sum.
			var mean, total float64
			top := topExponent(s.exp, s.alpha)
			for l, alpha := range s.alpha {
				if alpha > 0 { // any other da has no weight
					s.da[l] = math.Ldexp(s.da[l], s.exp[l]-top)
				}
				mean += float64(alpha * s.da[l])
				total += alpha
			}
			mean /= total
			shift += top
			for l := range r.rows {
				s.ds[l] = s.alpha[l] * (s.da[l] - mean)
			}
			for l, row := range r.rows {
				if wanted[l] == nil && !weights {
					continue
				}
				row.load(s.v, b, t)
				ldexp(s.v, -s.exp[l])
				inverse := 1 / s.rms[l]
				if weights {
					addScaled(sum, math.Ldexp(s.ds[l]*inverse, shift), s.v)
				}
				if wanted[l] == nil {
					continue
				}
				alpha, along := s.alpha[l], math.Ldexp(s.ds[l]*r.scale*inverse, shift-s.exp[l])
				h, g, u, v := s.h[:len(s.v)], s.g[:len(s.v)], r.u[:len(s.v)], s.v
				if r.norm {
					back := math.Ldexp(s.ds[l]*s.logit[l]/float64(r.width)*inverse, shift-s.exp[l])
					for i := range v {
						h[i] = float64(alpha*g[i]) + float64(along*u[i]) - float64(back*float64(v[i]*inverse))
					}
				} else {
					for i := range v {
						h[i] = float64(alpha*g[i]) + float64(along*u[i])
					}
				}
				to[l].store(b, t, h)
			}
		})
	})
	if err == nil && weights {
		err = r.weightGrads(q, chunks, grads)
	}
	for _, t := range append(wanted, grads.ProjWeight, grads.RMSNormGamma) {
		if t != nil {
			t.Memory().Written()
		}
	}
	return err
}

// weightGrads adds the chunks' partial sums in order and writes dw and dgamma.
func (r *attnRes) weightGrads(q []float64, chunks int, grads *device.BlockAttnResGrads) error {
	total := make([]float64, r.width)
	for c := range chunks {
		for i, x := range q[c*r.width : (c+1)*r.width] {
			total[i] += x
		}
	}
	for _, p := range []struct {
		to     *tensor.Tensor
		factor []float64
	}{{grads.ProjWeight, r.gamma}, {grads.RMSNormGamma, r.w}} {
		if p.to == nil {
			continue
		}
		s, err := sourceOf(p.to)
		if err != nil {
			return err
		}
		x := make([]float64, r.width)
		for i, t := range total {
			if chunks == 0 {
				break // no tokens: zeros, whatever the weights are
			}
			x[i] = r.scale * t
			if p.factor != nil {
				x[i] *= p.factor[i]
			}
		}
		s.store(0, 0, x)
	}
	return nil
}
