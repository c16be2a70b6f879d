package cpu

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

var _ device.BlockAttnRes = (*Device)(nil)

// The operator works token by token. A row, one source at one token, is widened
// to float64 each time it is read; for the usual L and D a token's rows are
// still in the second-level cache when they are read again. All arithmetic is
// in float64, where squares and dot products of narrower formats cannot over-
// or underflow, by fused multiply-adds, and in one order in every tier. Most
// tokens of 16-bit rows go a quicker path in float32; see attnquick.go.

// maxChunks bounds the partial sums over tokens; chunks follow from the shape alone.
const maxChunks = 64

// attnRes is what the tokens of one call share.
type attnRes struct {
	rows     []source // L of them
	tokens   int      // B*T
	steps    int      // T
	width    int      // D
	w        []float64
	gamma    []float64 // nil without RMSNorm
	u        []float64 // gamma * w, or w
	scale    float64
	eps      float64
	norm     bool
	wide     bool // float64 rows
	asm      *attnKernels
	quick    *attnQuick // for 16-bit rows, or nil
	whole    int        // elements of a row that asm takes; the others are done in Go
	outlying bool       // scale, or u of float64, is beyond the plain path
	un       []float64  // u * 2^-ue, for tokens beyond the plain path
	ue       int
}

// The plain path multiplies float64 numbers as they are. Products of up to
// six factors stay within the exponents of float64 if each factor is within
// 2^±150, as all narrower formats are. What is beyond goes the careful path.
const (
	factorLimit = 0x1p150
	scaleLimit  = 0x1p150
)

// plain reports whether |x| is 0 or within 1/limit and limit.
func plain(x, limit float64) bool {
	x = math.Abs(x)
	return x == 0 || x >= 1/limit && x <= limit
}

func newAttnRes(a *device.BlockAttnResArgs) (*attnRes, error) {
	x := a.Blocks[0]
	r := &attnRes{tokens: x.Dim(0) * x.Dim(1), steps: x.Dim(1), width: x.Dim(2), scale: a.Scale, eps: a.Eps, norm: a.RMSNorm, wide: x.DType() == tensor.Float64}
	var err error
	if r.rows, err = sourcesOf(a.Sources()); err != nil {
		return nil, err
	}
	if r.whole = r.width &^ 15; r.whole > 0 {
		r.asm = attnKernelsOf(active, x.DType())
		for _, row := range r.rows {
			if row.sd != 1 {
				r.asm = nil
			}
		}
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
	r.un = append([]float64(nil), r.w...)
	r.ue = normalise(r.un)
	if r.norm {
		if r.gamma, err = weight(a.RMSNormGamma); err != nil {
			return nil, err
		}
		gn := append([]float64(nil), r.gamma...)
		r.ue += normalise(gn)
		r.u = make([]float64, r.width)
		for i, g := range r.gamma {
			r.u[i] = g * r.w[i]
			r.un[i] *= gn[i]
		}
		r.ue += normalise(r.un)
	}
	if r.wide {
		r.outlying = !plain(r.scale, factorLimit) || !plain(scaledOf(largest(r.un), r.ue).float(), factorLimit)
	} else {
		r.outlying = !plain(r.scale, scaleLimit)
	}
	r.quick = newAttnQuick(r, x.DType())
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
	v, h, g, q              []float64 // D
	key, alpha, da, ds, rms []float64 // L
	careful                 []rowScaled
	at                      []unsafe.Pointer // L: the rows of a token
	lanes                   [32]float64
	c                       [4]float64
	past                    int // not 0: gradients are written past the caches
	quick                   quickScratch
	aside                   asideRows
}

// rowScaled are the numbers of a source on the careful path.
type rowScaled struct{ key, rms, da scaled }

var attnScratches sync.Pool

func getAttnScratch(l, d int) *attnScratch {
	s, _ := attnScratches.Get().(*attnScratch)
	if s == nil || cap(s.v) < d || cap(s.key) < l {
		s = &attnScratch{careful: make([]rowScaled, l), at: make([]unsafe.Pointer, l)}
		for _, x := range []*[]float64{&s.v, &s.h, &s.g, &s.q} {
			*x = make([]float64, d)
		}
		for _, x := range []*[]float64{&s.key, &s.alpha, &s.da, &s.ds, &s.rms} {
			*x = make([]float64, l)
		}
	}
	for _, x := range []*[]float64{&s.v, &s.h, &s.g, &s.q} {
		*x = (*x)[:d]
	}
	for _, x := range []*[]float64{&s.key, &s.alpha, &s.da, &s.ds, &s.rms} {
		*x = (*x)[:l]
	}
	s.careful, s.at = s.careful[:l], s.at[:l]
	return s
}

// scratch is a worker's memory for the call.
func (r *attnRes) scratch() *attnScratch {
	s := getAttnScratch(len(r.rows), r.width)
	if r.quick != nil {
		s.quick.fit(len(r.rows), r.quick.n)
		s.quick.ragged = !r.quick.lies(r.rows, r.width)
	}
	return s
}

func (r *attnRes) forwardQuick(s *attnScratch, b, t int) (float32, bool) {
	if r.quick == nil {
		return 0, false
	}
	return r.quick.forward(r, s, b, t)
}

// plainRow reports whether the plain path takes a row with these mean squares
// and rms.
func (r *attnRes) plainRow(s *attnScratch, row source, b, t int, ss, rms float64) bool {
	if !r.wide {
		return true
	}
	if ss == 0 {
		row.load(s.v, b, t)
		if largest(s.v) != 0 {
			return false // squares that underflow
		}
	} else if !plain(ss, factorLimit*factorLimit) {
		return false
	}
	return !r.norm || rms != 0 && plain(rms, factorLimit)
}

// weights fills s.key, the w . k_l, s.rms and s.alpha for a token. It gives
// false for one that needs the careful path.
func (r *attnRes) weights(s *attnScratch, b, t int) bool {
	if r.outlying {
		return false
	}
	sign := 1.0
	if r.scale < 0 {
		sign = -1
	}
	top := math.Inf(-1) // of sign * key
	for l, row := range r.rows {
		ss, key := r.squares(s, row, b, t)
		rms := 1.0
		if r.norm {
			rms = math.Sqrt(ss/float64(r.width) + r.eps)
			key /= rms
		}
		if !r.plainRow(s, row, b, t, ss, rms) {
			return false
		}
		s.key[l], s.rms[l] = key, rms
		if x := sign * key; x > top || x != x {
			top = x
		}
	}
	var total float64
	for l, key := range s.key {
		s.alpha[l] = elementary.Exp(r.scale * (key - sign*top))
		total += s.alpha[l]
	}
	for l := range s.alpha {
		s.alpha[l] /= total
	}
	return true
}

// weightsCareful is weights for any numbers.
func (r *attnRes) weightsCareful(s *attnScratch, b, t int) {
	scale := scaledOf(r.scale, 0)
	var top scaled
	for l, row := range r.rows {
		row.load(s.v, b, t)
		c := &s.careful[l]
		e := normalise(s.v)
		c.key, c.rms = scaledOf(dot(s.v, r.un), e+r.ue), scaledOf(1, 0)
		if r.norm {
			c.rms = r.rmsOf(s.v, e, r.eps)
			c.key = c.key.over(c.rms)
		}
		s.rms[l] = c.rms.float()
		c.key = c.key.times(scale)
		if d := c.key.minus(top).m; l == 0 || d > 0 || d != d {
			top = c.key
		}
	}
	var total float64
	for l := range s.alpha {
		s.alpha[l] = elementary.Exp(s.careful[l].key.minus(top).float())
		total += s.alpha[l]
	}
	for l := range s.alpha {
		s.alpha[l] /= total
	}
}

// rmsOf is the root of the mean square of v * 2^e plus eps.
func (r *attnRes) rmsOf(v []float64, e int, eps float64) scaled {
	return scaledOf(dot(v, v)/float64(r.width), 2*e).plus(scaledOf(eps, 0)).sqrt()
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
	err = d.run(ctx, chunks, each(func(chunk int) {
		s := r.scratch()
		defer attnScratches.Put(s)
		r.each(ctx, chunk, length, func(b, t int) {
			if c, ok := r.forwardQuick(s, b, t); ok {
				r.quick.round(&s.quick, to[0], r.width, b, t, c)
			} else {
				if !r.weights(s, b, t) {
					r.weightsCareful(s, b, t)
				}
				r.mix(s, b, t)
				r.narrow(s, to[0], b, t)
			}
			if out.RMS != nil {
				to[1].store(b, t, s.rms)
			}
			if out.Alpha != nil {
				to[2].store(b, t, s.alpha)
			}
		})
	}))
	for _, t := range []*tensor.Tensor{out.H, out.RMS, out.Alpha} {
		if t != nil {
			t.Memory().Written()
		}
	}
	return err
}

// BlockAttnResBackward, with u = gamma * w, or w without RMSNorm:
//
//	da_l = g . v_l
//	ds_l = alpha_l (da_l - sum_j alpha_j da_j)
//	dv_l = alpha_l g + ds_l (scale u/rms_l - v_l logit_l/(D rms_l^2))
//	q    = sum over b,t,l of ds_l/rms_l v_l
//	dw   = scale gamma * q,  dgamma = scale w * q
//
// Tokens whose products may leave float64 go the careful path.
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
	cached := cachedAs(tensor.Float32)
	if r.norm {
		cached = cachedAs(rms.DType())
	}
	weights := grads.ProjWeight != nil || grads.RMSNormGamma != nil
	chunks, length := r.chunks()
	var sums []partialSum // of q, one for each chunk
	if weights {
		mem, err := d.Alloc(chunks * r.width * 8)
		if err != nil {
			return err
		}
		defer d.Free(mem)
		q := elems[float64](mem.(*tensor.Host).Bytes())
		clear(q)
		sums = make([]partialSum, chunks)
		for c := range sums {
			sums[c].v = q[c*r.width : (c+1)*r.width]
		}
	}
	added := false // some gradient is added to what is there
	for l := range grads.Add {
		added = added || grads.Add[l] && wanted[l] != nil
	}
	ragged := false // some gradient does not lie as the quick path writes it
	for l := range to {
		ragged = ragged || wanted[l] != nil && to[l].sd != 1 && !(added && grads.Add[l])
	}
	past := 0
	if !added && len(r.rows)*r.tokens*r.width*r.rows[0].dtype.Size() >= quickPast {
		past = 1
	}
	err = d.run(ctx, chunks, each(func(chunk int) {
		s := r.scratch()
		defer attnScratches.Put(s)
		s.quick.ragged = s.quick.ragged || ragged
		s.past = past
		switch {
		case past == 0:
		case r.quick != nil:
			defer r.quick.fence()
		case r.asm != nil:
			defer r.asm.fence()
		}
		var sum *partialSum
		if weights {
			sum = &sums[chunk]
		}
		final := to
		to := to
		if added {
			to = s.aside.rows(r, to, wanted, grads.Add)
		}
		r.each(ctx, chunk, length, func(b, t int) {
			if added {
				defer s.aside.add(r, final, wanted, grads.Add, b, t)
			}
			from[1].load(s.alpha, b, t)
			if r.norm {
				from[2].load(s.rms, b, t)
			}
			if r.quick != nil && r.quick.backward(r, s, from[0], to, wanted, sum, past, b, t) {
				return
			}
			from[0].load(s.g, b, t)
			if !r.slopes(s, cached, b, t) {
				r.backwardCareful(s, cached, to, wanted, sum, b, t)
				return
			}
			for l, row := range r.rows {
				if wanted[l] == nil && !weights {
					continue
				}
				ds, inverse := s.ds[l], 1/s.rms[l]
				if wanted[l] == nil || weights && sum.e != nil {
					row.load(s.v, b, t)
					sum.add(scaled{ds * inverse, 0}, s.v)
				}
				if wanted[l] == nil {
					continue
				}
				q := s.q // where the weights' gradients are not wanted, or have been added to
				if weights && sum.e == nil {
					q = sum.v
					sum.n++
				}
				along := ds * r.scale * inverse
				s.c = [4]float64{s.alpha[l], along, 0, ds * inverse}
				if r.norm {
					s.c[2] = along * s.key[l] / float64(r.width) * inverse
				}
				r.slopesOf(s, row, to[l], q, b, t)
			}
		})
	}))
	if err == nil && weights {
		err = r.weightGrads(sums, grads)
	}
	for _, t := range append(wanted, grads.ProjWeight, grads.RMSNormGamma) {
		if t != nil {
			t.Memory().Written()
		}
	}
	return err
}

// slopes fills s.key, s.rms and s.ds for a token from the caches. It gives false
// for one that needs the careful path.
func (r *attnRes) slopes(s *attnScratch, cached cacheFormat, b, t int) bool {
	if r.outlying || r.wide && !plain(largest(s.g), factorLimit) {
		return false
	}
	for l, row := range r.rows {
		if !r.norm {
			s.rms[l] = 1
		} else if !cached.exact(s.rms[l]) {
			row.load(s.v, b, t)
			s.rms[l] = r.recall(cached, s.rms[l], s.v, 0).float()
		}
		if r.wide {
			if ss, _ := r.squares(s, row, b, t); !r.plainRow(s, row, b, t, ss, s.rms[l]) {
				return false
			}
		}
		s.da[l], s.key[l] = r.dots(s, row, b, t)
		s.key[l] /= s.rms[l]
	}
	// The cached weights are rounded, so they add up to 1 only nearly: the mean is divided by their sum.
	var mean, total float64
	for l, alpha := range s.alpha {
		mean += float64(alpha * s.da[l])
		total += alpha
	}
	mean /= total
	for l := range s.ds {
		s.ds[l] = s.alpha[l] * (s.da[l] - mean)
	}
	return true
}

// cacheFormat is what a cache's dtype can hold.
type cacheFormat struct{ least, most, step float64 } // normal numbers, and the distance of subnormal ones

func cachedAs(d tensor.DType) cacheFormat {
	if d == tensor.Float64 {
		return cacheFormat{0x1p-1022, math.MaxFloat64, 0x1p-1074}
	}
	return cacheFormat{0x1p-126, math.MaxFloat32, 0x1p-149}
}

func (c cacheFormat) exact(rms float64) bool { return rms >= c.least && rms <= c.most }

// recall is the rms of the row v * 2^e that was cached. Where the cache could
// not hold it exactly it is computed again, with the eps of the call or, since
// the backward need not be told the forward's eps, without one: whichever
// agrees with the cache.
func (r *attnRes) recall(c cacheFormat, rms float64, v []float64, e int) scaled {
	if c.exact(rms) || rms != rms {
		return scaledOf(rms, 0)
	}
	for _, eps := range []float64{r.eps, 0} {
		again := r.rmsOf(v, e, eps)
		if x := again.float(); math.Abs(x-rms) <= c.step || !(x <= c.most) && rms > c.most {
			return again
		}
	}
	return scaledOf(rms, 0)
}

// backwardCareful is the backward of one token for any numbers: the rows, g and
// u are divided by powers of two, and everything else carries its exponent.
func (r *attnRes) backwardCareful(s *attnScratch, cached cacheFormat, to []source, wanted []*tensor.Tensor, sum *partialSum, b, t int) {
	ge := normalise(s.g)
	var mean scaled
	var total float64
	for l, row := range r.rows {
		row.load(s.v, b, t)
		e := normalise(s.v)
		c := &s.careful[l]
		c.rms = scaledOf(1, 0)
		if r.norm {
			c.rms = r.recall(cached, s.rms[l], s.v, e)
		}
		c.key = scaledOf(dot(s.v, r.un), e+r.ue).over(c.rms)
		c.da = scaledOf(dot(s.v, s.g), e+ge)
		mean = mean.plus(c.da.times(scaledOf(s.alpha[l], 0)))
		total += s.alpha[l]
	}
	mean = mean.over(scaledOf(total, 0))
	scale := scaledOf(r.scale, 0)
	for l, row := range r.rows {
		if wanted[l] == nil && sum == nil {
			continue
		}
		row.load(s.v, b, t)
		c := &s.careful[l]
		ds := scaledOf(s.alpha[l], 0).times(c.da.minus(mean))
		if sum != nil {
			sum.add(ds.over(c.rms), s.v)
		}
		if wanted[l] == nil {
			continue
		}
		// dv = x g + y u - z v, where any of them may leave float64 for some elements
		x := scaledOf(s.alpha[l], ge)
		y := ds.times(scale).over(c.rms)
		var z scaled
		if r.norm {
			z = y.times(c.key).over(c.rms).over(scaledOf(float64(r.width), 0))
		}
		y.e += r.ue
		for i := range s.h {
			dv := x.times(scaledOf(s.g[i], 0)).plus(y.times(scaledOf(r.un[i], 0)))
			s.h[i] = dv.minus(z.times(scaledOf(s.v[i], 0))).float()
		}
		to[l].store(b, t, s.h)
	}
}

// partialSum is a sum over the tokens of a chunk: element i is v[i] * 2^e[i].
type partialSum struct {
	v []float64
	e []int // nil, for zeros, until the careful path needs them
	n int   // how many terms
}

// add adds c * x.
func (p *partialSum) add(c scaled, x []float64) {
	p.n++
	if c.e == 0 && p.e == nil {
		addScaled(p.v, c.m, x)
		return
	}
	for i := range x {
		p.addTo(i, c.times(scaledOf(x[i], 0)))
	}
}

// addTo adds x to element i.
func (p *partialSum) addTo(i int, x scaled) {
	if p.e == nil {
		p.e = make([]int, len(p.v))
	}
	x = scaledOf(p.v[i], p.e[i]).plus(x)
	p.v[i], p.e[i] = x.m, x.e
}

// at is element i.
func (p *partialSum) at(i int) scaled {
	if p.e == nil {
		return scaledOf(p.v[i], 0)
	}
	return scaled{p.v[i], p.e[i]}
}

// weightGrads adds the chunks' partial sums in order and writes dw and dgamma.
func (r *attnRes) weightGrads(sums []partialSum, grads *device.BlockAttnResGrads) error {
	all := partialSum{v: make([]float64, r.width)}
	for _, p := range sums {
		switch {
		case p.n == 0:
		case p.e == nil:
			all.add(scaled{1, 0}, p.v)
		default:
			all.n++
			for i := range p.v {
				all.addTo(i, p.at(i))
			}
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
		for i := range x {
			if all.n == 0 {
				break // zeros, whatever the weights are
			}
			f := scaledOf(r.scale, 0).times(all.at(i))
			if p.factor != nil {
				f = f.times(scaledOf(p.factor[i], 0))
			}
			x[i] = f.float()
		}
		s.store(0, 0, x)
	}
	return nil
}
