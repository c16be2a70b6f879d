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
	store(s.bytes, s.dtype, s.at+b*s.sb+t*s.st, s.sd, src)
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
	}
	for _, x := range []*[]float64{&s.v, &s.h, &s.g} {
		*x = (*x)[:d]
	}
	for _, x := range []*[]float64{&s.logit, &s.alpha, &s.da, &s.ds, &s.rms} {
		*x = (*x)[:l]
	}
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

// key is the logit of a row, and its rms where the keys are normalised.
func (r *attnRes) key(v []float64) (logit, rms float64) {
	if !r.norm {
		return r.scale * dot(v, r.u), 1
	}
	d := float64(r.width)
	ss := dot(v, v)
	if r.extreme && !(ss > 1e-250 && ss < 1e250) {
		return r.extremeKey(v, 0)
	}
	rms = math.Sqrt(ss/d + r.eps)
	return r.scale * (dot(v, r.u) / rms), rms
}

// extremeKey is key for a row whose squares leave float64: the row, and eps with
// it, is scaled by a power of two that makes its largest element about 1. A
// positive rms is the known one.
func (r *attnRes) extremeKey(v []float64, known float64) (logit, rms float64) {
	var top float64
	for _, x := range v {
		if a := math.Abs(x); a > top || a != a {
			top = a
		}
	}
	exp := 0
	if top > 0 && top <= math.MaxFloat64 {
		_, exp = math.Frexp(top)
	}
	scaled := make([]float64, len(v))
	for i, x := range v {
		scaled[i] = math.Ldexp(x, -exp)
	}
	small := math.Ldexp(known, -exp)
	if known == 0 {
		small = math.Sqrt(dot(scaled, scaled)/float64(r.width) + math.Ldexp(r.eps, -2*exp))
	}
	if small == math.Inf(1) { // the row is nothing beside eps
		return r.scale * (dot(v, r.u) / math.Sqrt(r.eps)), math.Sqrt(r.eps)
	}
	return r.scale * (dot(scaled, r.u) / small), math.Ldexp(small, exp)
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
			// The cached weights are rounded, so they add up to 1 only nearly: the mean is divided by their sum.
			var mean, total float64
			for l, row := range r.rows {
				row.load(s.v, b, t)
				s.da[l] = dot(s.v, s.g)
				mean += float64(s.alpha[l] * s.da[l])
				total += s.alpha[l]
				if !r.norm {
					continue
				}
				if x := s.rms[l]; r.extreme && !(x > 1e-125 && x < 1e125) {
					s.logit[l], _ = r.extremeKey(s.v, x)
				} else {
					s.logit[l] = r.scale * (dot(s.v, r.u) / x)
				}
			}
			mean /= total
			for l := range r.rows {
				s.ds[l] = s.alpha[l] * (s.da[l] - mean)
			}
			for l, row := range r.rows {
				if wanted[l] == nil && !weights {
					continue
				}
				row.load(s.v, b, t)
				inverse := 1 / s.rms[l]
				if weights {
					addScaled(sum, s.ds[l]*inverse, s.v)
				}
				if wanted[l] == nil {
					continue
				}
				alpha, along := s.alpha[l], s.ds[l]*r.scale*inverse
				h, g, u, v := s.h[:len(s.v)], s.g[:len(s.v)], r.u[:len(s.v)], s.v
				if r.norm {
					back := s.ds[l] * s.logit[l] / float64(r.width) * inverse
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
			x[i] = r.scale * t
			if p.factor != nil {
				x[i] *= p.factor[i]
			}
		}
		s.store(0, 0, x)
	}
	return nil
}
