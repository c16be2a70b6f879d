package cpu

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// Numbers of 300 bits and any exponent: what the operator would give if nothing
// were rounded and nothing could overflow.
func bigOf(x float64) *big.Float     { return new(big.Float).SetPrec(300).SetFloat64(x) }
func add(a, b *big.Float) *big.Float { return bigOf(0).Add(a, b) }
func sub(a, b *big.Float) *big.Float { return bigOf(0).Sub(a, b) }
func div(a, b *big.Float) *big.Float { return bigOf(0).Quo(a, b) }
func absOf(a *big.Float) *big.Float  { return bigOf(0).Abs(a) }
func mul(a *big.Float, more ...*big.Float) *big.Float {
	p := bigOf(0).Set(a)
	for _, b := range more {
		p.Mul(p, b)
	}
	return p
}

// bigExp of an x <= 0; far below it is 0.
func bigExp(x *big.Float) *big.Float {
	if f, _ := x.Float64(); f < -5000 {
		return bigOf(0)
	}
	y := bigOf(0).SetMantExp(x, -40)
	sum, term := bigOf(1), bigOf(1)
	for n := 1; n < 12; n++ {
		term = div(mul(term, y), bigOf(float64(n)))
		sum = add(sum, term)
	}
	for range 40 {
		sum = mul(sum, sum)
	}
	return sum
}

// bigSum is a sum and that of the magnitudes of its terms.
type bigSum struct{ x, size *big.Float }

func newSum() bigSum { return bigSum{bigOf(0), bigOf(0)} }
func (s *bigSum) add(x, size *big.Float) {
	s.x, s.size = add(s.x, x), add(s.size, size)
}

// exact is the definition of one token with the tolerance of its rounding
// errors: eps times what each number is made of. It gives false where rounding
// alone decides which row has the weight.
func (p *depth) exact(eps, step float64) (map[string][]bigSum, bool) {
	l, d := len(p.rows), p.d
	rms, logit := make([]*big.Float, l), make([]bigSum, l)
	u := make([]*big.Float, d)
	for j := range u {
		if u[j] = bigOf(p.w[j]); p.norm {
			u[j] = mul(u[j], bigOf(p.gamma[j]))
		}
	}
	top := 0
	for i, v := range p.rows {
		rms[i] = bigOf(1)
		if p.norm {
			ms := bigOf(0)
			for _, x := range v {
				ms = add(ms, mul(bigOf(x), bigOf(x)))
			}
			rms[i] = bigOf(0).Sqrt(add(div(ms, bigOf(float64(d))), bigOf(p.eps)))
		}
		logit[i] = newSum()
		for j, x := range v {
			term := div(mul(bigOf(p.scale), u[j], bigOf(x)), rms[i])
			logit[i].add(term, absOf(term))
		}
		if logit[i].x.Cmp(logit[top].x) > 0 {
			top = i
		}
	}
	alpha, total, doubt := make([]*big.Float, l), bigOf(0), 0.0
	for i := range alpha {
		gap := sub(logit[i].x, logit[top].x)
		noise := mul(add(logit[i].size, logit[top].size), bigOf(eps))
		if i != top && add(gap, noise).Cmp(bigOf(-800)) > 0 {
			x, _ := noise.Float64()
			doubt = max(doubt, x)
		}
		alpha[i] = bigExp(gap)
		total = add(total, alpha[i])
	}
	if doubt > 1e-3 {
		return nil, false
	}
	of := map[string][]bigSum{}
	h, da, rough := make([]bigSum, d), make([]bigSum, l), make([]*big.Float, l)
	mean := newSum()
	for j := range h {
		h[j] = newSum()
	}
	for i, v := range p.rows {
		alpha[i] = div(alpha[i], total)
		rough[i] = mul(alpha[i], bigOf(1+doubt/eps)) // the noise of the logits
		if step > 0 {
			rough[i] = add(rough[i], bigOf(step/eps))
		}
		of["alpha_cache"] = append(of["alpha_cache"], bigSum{alpha[i], rough[i]})
		of["rms_cache"] = append(of["rms_cache"], bigSum{rms[i], rms[i]})
		da[i] = newSum()
		for j, x := range v {
			t := mul(alpha[i], bigOf(x))
			h[j].add(t, mul(rough[i], absOf(bigOf(x))))
			t = mul(bigOf(x), bigOf(p.g[j]))
			da[i].add(t, absOf(t))
		}
		mean.add(mul(alpha[i], da[i].x), mul(rough[i], da[i].size))
	}
	of["output"] = h
	dw, dgamma := make([]bigSum, d), make([]bigSum, d)
	for j := range dw {
		dw[j], dgamma[j] = newSum(), newSum()
	}
	width := bigOf(float64(d))
	for i, v := range p.rows {
		ds := mul(alpha[i], sub(da[i].x, mean.x))
		dsSize := mul(rough[i], add(da[i].size, mean.size))
		name := blockName(i)
		if p.partial && i == l-1 {
			name = "grad_partial_block"
		}
		for j, x := range v {
			s := newSum()
			s.add(mul(alpha[i], bigOf(p.g[j])), mul(rough[i], absOf(bigOf(p.g[j]))))
			along := div(mul(bigOf(p.scale), u[j]), rms[i])
			s.add(mul(ds, along), mul(dsSize, absOf(along)))
			unit := div(bigOf(x), rms[i])
			if p.norm {
				back := div(mul(logit[i].x, unit), mul(width, rms[i]))
				size := div(mul(logit[i].size, absOf(unit)), mul(width, rms[i]))
				s.add(bigOf(0).Neg(mul(ds, back)), mul(dsSize, size))
				f := mul(bigOf(p.scale), bigOf(p.w[j]), unit)
				dgamma[j].add(mul(ds, f), mul(dsSize, absOf(f)))
				unit = mul(unit, bigOf(p.gamma[j]))
			}
			f := mul(bigOf(p.scale), unit)
			dw[j].add(mul(ds, f), mul(dsSize, absOf(f)))
			of[name] = append(of[name], s)
		}
	}
	of["grad_proj_weight"], of["grad_rmsnorm_gamma"] = dw, dgamma
	if !p.norm {
		delete(of, "rms_cache")
		delete(of, "grad_rmsnorm_gamma")
	}
	return of, true
}

// within holds every result of a one-token call against exact.
func (p *depth) within(t *testing.T, what string, x *placed, eps, step float64) bool {
	t.Helper()
	want, decided := p.exact(eps, step)
	if !decided {
		return false
	}
	for name, y := range x.results() {
		for i, got := range values(t, y) {
			w := want[name][i]
			nearest, _ := w.x.Float64()
			nearest = tensor.Round(y.DType(), nearest)
			if got == nearest { // also where both are infinite
				continue
			}
			// One step of the dtype; a subnormal h adds a rounded product for each row.
			step := ulp(y.DType(), nearest)
			if math.Abs(nearest) < 0x1p-1022 {
				step *= float64(len(p.rows))
			}
			limit := add(mul(w.size, bigOf(eps)), bigOf(step))
			most := bigOf(largestOf(y.DType()))
			if got == got && add(absOf(w.x), limit).Cmp(most) > 0 && (math.IsInf(got, 0) || limit.Cmp(most) > 0) {
				continue // what cancels is beyond the format
			}
			if got-got != 0 || math.IsInf(nearest, 0) {
				t.Fatalf("%s: %s element %d is %v, want %v", what, name, i, got, nearest)
			}
			if absOf(sub(bigOf(got), w.x)).Cmp(limit) > 0 {
				t.Fatalf("%s: %s element %d is %v, want %v", what, name, i, got, nearest)
			}
		}
	}
	return true
}

// Any sizes of rows, weights, gradient, scale and eps, mixed at random: every
// result is that of arithmetic without limits, or its rounded value.
func TestBlockAttnResAnyRange(t *testing.T) {
	dev := newDevice(t, 1)
	r := rand.New(rand.NewPCG(27, 1))
	count := 6000
	if testing.Short() {
		count = 1000
	}
	exponents := map[tensor.DType][]int{
		tensor.Float64:  {0, 0, 0, 0, 150, -150, 250, -250, 400, -400, 500, -500, 664, -664, 1000, -1000, 1018, -1040},
		tensor.Float32:  {0, 0, 0, 64, -64, 120, -120, -130},
		tensor.BFloat16: {0, 0, 0, 64, -64, 120, -120, -128},
	}
	decided, moderate := 0, 0
	for i := range count {
		dtype := []tensor.DType{tensor.Float64, tensor.Float64, tensor.Float64, tensor.Float32, tensor.BFloat16}[i%5]
		p := newDepth(r, dtype, 1, 1, 1+r.IntN(4), 1+r.IntN(9), r.IntN(2) == 0, r.IntN(4) > 0, 1)
		grow := func(x []float64, e int) {
			for i := range x {
				x[i] = tensor.Round(dtype, math.Ldexp(x[i], e))
			}
		}
		pick := func() int { e := exponents[dtype]; return e[r.IntN(len(e))] }
		same := pick()
		for _, row := range p.rows {
			if r.IntN(4) == 0 {
				grow(row, pick())
			} else {
				grow(row, same)
			}
		}
		for _, x := range [][]float64{p.w, p.gamma, p.g} {
			if r.IntN(2) == 0 {
				grow(x, pick())
			}
		}
		p.eps = []float64{0, 0, 1e-6, 1e-6, 1e-300, 1e100, 1e-80}[r.IntN(7)]
		p.scale = []float64{1, -0.7, 3, 0, 1e300, -1e300, 1e-300, 1e308, 1e60}[r.IntN(9)]
		if r.IntN(2) == 0 { // so that the logits are moderate, if a scale can do that
			p.scale = p.moderate()
		}
		cache := tensor.Float32
		if dtype == tensor.Float64 {
			cache = tensor.Float64
		}
		x := p.place(t, dense, cache)
		x.run(t, dev)
		what := fmt.Sprintf("case %d: %v, scale %g, eps %g, norm %v, rows %v, w %v, gamma %v, g %v", i, dtype, p.scale, p.eps, p.norm, p.rows, p.w, p.gamma, p.g)
		// float32 caches are rounded to 6e-8, which the gradients inherit.
		tol, step := 3e-13, 0x1p-1074
		if dtype != tensor.Float64 {
			tol, step = 1e-6, 0x1p-149
			if !p.cachesHold() {
				continue // an rms of more than float32: TestBlockAttnResLostCache
			}
		}
		if p.zeroRMS() {
			continue // 0/0 by the definition
		}
		if p.within(t, what, x, tol, step) {
			decided++
			if a := values(t, x.out.Alpha); len(a) > 1 && a[0] > 0.001 && a[0] < 0.999 {
				moderate++
			}
		}
	}
	t.Logf("%d cases decided, %d with moderate weights", decided, moderate)
	if decided < count/2 || moderate < count/8 {
		t.Errorf("only %d cases were decided, and %d had moderate weights", decided, moderate)
	}
}

// A weight of 0 under the largest scale: the logits are 0, not 0 * Inf.
func TestBlockAttnResLargestScale(t *testing.T) {
	dev := newDevice(t, 1)
	for _, d := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.BFloat16, tensor.Float16} {
		p := newDepth(rand.New(rand.NewPCG(28, 1)), d, 1, 1, 3, 5, false, true, math.MaxFloat64)
		clear(p.w)
		for i := range p.g {
			p.g[i] = tensor.Round(d, p.g[i]*1000)
		}
		x := p.place(t, dense, d.Wide())
		x.run(t, dev)
		for i, got := range values(t, x.grads.Blocks[1]) {
			if want := tensor.Round(d, p.g[i]/3); math.Abs(got-want) > 1e-6*math.Abs(want) {
				t.Errorf("%v: gradient %d is %v, want %v", d, i, got, want)
			}
		}
	}
}

// A cache that could not hold the rms: the backward finds it again with the
// eps of the call, or none if it is not told; where neither fits the cache, an
// infinite rms makes keys of 0.
func TestBlockAttnResLostCache(t *testing.T) {
	dev := newDevice(t, 1)
	for _, c := range []struct {
		dtype     tensor.DType
		exp       int // of the rows
		eps, told float64
	}{
		{tensor.Float32, -130, 0, 1e-6}, {tensor.Float32, -130, 0, 0}, {tensor.Float32, -140, 1e-83, 1e-83}, {tensor.BFloat16, -128, 0, 1e-6},
		{tensor.Float64, -465, 0, 1e-6}, {tensor.Float64, -1040, 0, 1e-6}, {tensor.Float32, 3, 1e80, 1e80},
	} {
		p := newDepth(rand.New(rand.NewPCG(29, 1)), c.dtype, 1, 1, 3, 2, true, true, 1)
		for _, row := range p.rows {
			for i := range row {
				row[i] = tensor.Round(c.dtype, math.Ldexp(row[i], c.exp))
			}
		}
		p.eps = c.eps
		x := p.place(t, dense, c.dtype.Wide())
		ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
		x.args.Eps = c.told
		ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, x.grads))
		if c.eps > 1 {
			clearCache(x) // beyond float32, and the reference compares it
		}
		tol := 1e-6
		if c.dtype == tensor.Float64 {
			tol = 1e-12
		}
		if !p.within(t, fmt.Sprintf("%+v", c), x, tol, 0x1p-149) {
			t.Fatalf("%+v: not decided", c)
		}
	}
	p := newDepth(rand.New(rand.NewPCG(30, 1)), tensor.Float32, 1, 1, 3, 2, true, true, 1)
	p.eps = 1e80
	x := p.place(t, dense, tensor.Float32)
	ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
	x.args.Eps = 1e-6
	ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, x.grads))
	for i, g := range values(t, x.grads.Blocks[0]) {
		if want := p.g[i] / 4; math.Abs(g-want) > 1e-7 {
			t.Errorf("an infinite rms: gradient %v, want %v", g, want)
		}
	}
}

// clearCache leaves the rms cache out of the results.
func clearCache(x *placed) { x.out = &device.BlockAttnResOut{H: x.out.H, Alpha: x.out.Alpha} }

func (p *depth) rmsRange() (least, most float64) {
	least = math.Inf(1)
	for _, row := range p.rows {
		ms := bigOf(0)
		for _, x := range row {
			ms = add(ms, mul(bigOf(x), bigOf(x)))
		}
		x, _ := bigOf(0).Sqrt(add(div(ms, bigOf(float64(p.d))), bigOf(p.eps))).Float64()
		least, most = min(least, x), max(most, x)
	}
	return least, most
}

func (p *depth) zeroRMS() bool {
	least, _ := p.rmsRange()
	return p.norm && least == 0
}

func (p *depth) cachesHold() bool {
	_, most := p.rmsRange()
	return !p.norm || most <= math.MaxFloat32
}

// moderate is a scale for logits of about 3, as far as there is one.
func (p *depth) moderate() float64 {
	top := bigOf(0)
	for _, row := range p.rows {
		logit, ms := bigOf(0), bigOf(0)
		for j, x := range row {
			term := mul(bigOf(x), bigOf(p.w[j]))
			if p.norm {
				term = mul(term, bigOf(p.gamma[j]))
			}
			logit = add(logit, term)
			ms = add(ms, mul(bigOf(x), bigOf(x)))
		}
		if p.norm {
			if ms = add(div(ms, bigOf(float64(p.d))), bigOf(p.eps)); ms.Sign() == 0 {
				return 1
			}
			logit = div(logit, bigOf(0).Sqrt(ms))
		}
		if logit = absOf(logit); logit.Cmp(top) > 0 {
			top = logit
		}
	}
	if top.Sign() == 0 {
		return 1
	}
	s, _ := div(bigOf(3), top).Float64()
	if s == 0 || math.IsInf(s, 0) {
		return 1
	}
	return s
}

// largestOf is the largest finite number of a format.
func largestOf(d tensor.DType) float64 {
	switch d {
	case tensor.Float16:
		return 65504
	case tensor.BFloat16:
		return 0x1.fep127
	case tensor.Float32:
		return math.MaxFloat32
	}
	return math.MaxFloat64
}

// oneToken is a case of one token with D = 1 or more, float64 unless said otherwise.
func oneToken(dtype tensor.DType, norm bool, scale float64, w, g []float64, rows ...[]float64) *depth {
	p := &depth{dtype: dtype, b: 1, t: 1, d: len(w), rows: rows, w: w, g: g, scale: scale, norm: norm, gamma: make([]float64, len(w))}
	for i := range p.gamma {
		p.gamma[i] = 1
	}
	return p
}

// Cases that random ones hardly meet, each with the step that would go wrong.
func TestBlockAttnResCareful(t *testing.T) {
	dev := newDevice(t, 1)
	run := func(p *depth) *placed {
		x := p.place(t, dense, p.dtype.Wide())
		x.run(t, dev)
		return x
	}
	// ds * scale is infinite, and 0 in the weight must not make it NaN.
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float64} {
		x := run(oneToken(d, true, 0x1p1000, []float64{1, 1, 0}, []float64{0x1p100, 0x1p99, 3}, []float64{0x1p100, 0, 0}, []float64{0, 0x1p100, 0}))
		if got := values(t, x.grads.Blocks[0])[2]; got != 1.5 {
			t.Errorf("%v: beside an infinite derivative, a gradient is %v, want 1.5", d, got)
		}
	}
	for what, p := range map[string]*depth{
		"g . v underflows":                oneToken(tensor.Float64, false, 0x1p140, []float64{0x1p140, 0x1p140}, []float64{0x1p-140, 0}, []float64{0x1p-950, 0}, []float64{-0x1p-950, 0}),
		"ds v overflows":                  oneToken(tensor.Float64, false, 0x1p-145, []float64{0}, []float64{0x1p145}, []float64{0x1p510}, []float64{-0x1p510}),
		"ds * scale overflows":            oneToken(tensor.Float64, false, 0x1p100, []float64{0x1p-140}, []float64{0x1p900}, []float64{0x1p30}, []float64{-0x1p30}),
		"the largest key is not the top":  oneToken(tensor.Float64, false, -1, []float64{1}, []float64{1}, []float64{1000}, []float64{1010}),
		"the smallest key is not the top": oneToken(tensor.Float32, false, 1, []float64{1}, []float64{1}, []float64{-1000}, []float64{-1010}),
	} {
		if !p.within(t, what, run(p), 3e-13, 0x1p-1074) && !p.within(t, what, run(p), 1e-6, 0x1p-149) {
			t.Errorf("%s: not decided", what)
		}
	}
	// A row without weight, however large, leaves the sums of the others alone.
	x := run(oneToken(tensor.Float64, false, 1, []float64{-1}, []float64{1}, []float64{0x1p1000}, []float64{0x1p-300}, []float64{-0x1p-300}))
	if got := values(t, x.grads.ProjWeight)[0]; got != 0x1p-600 {
		t.Errorf("beside a row of 2^1000 without weight dw is %v, want 2^-600", got)
	}
	// A column in which the large rows have nothing, in one token and over two.
	p := oneToken(tensor.Float64, false, 1, []float64{0, 0}, []float64{1, 1}, []float64{0x1p1000, 0}, []float64{-0x1p1000, 0}, []float64{0, 0x1p-100}, []float64{0, -0x1p-100})
	x = run(p)
	if got := values(t, x.grads.ProjWeight); !math.IsInf(got[0], 1) || got[1] != 0x1p-201 {
		t.Errorf("beside rows of 2^1000 dw is %v, want Inf and 2^-201", got)
	}
	p.t, p.g = 2, []float64{1, 1, 1, 1}
	p.rows = [][]float64{{0x1p1000, 0, 0, 0x1p-100}, {-0x1p1000, 0, 0, -0x1p-100}}
	for _, swap := range []bool{false, true} {
		if swap {
			p.rows = [][]float64{{0, 0x1p-100, 0x1p1000, 0}, {0, -0x1p-100, -0x1p1000, 0}}
		}
		if got := values(t, run(p).grads.ProjWeight); !math.IsInf(got[0], 1) || got[1] != 0x1p-200 {
			t.Errorf("after a token of 2^1000 dw is %v, want Inf and 2^-200", got)
		}
	}
}

// Plain tokens after ones that need care, in one sum.
func TestBlockAttnResCarefulAmongPlain(t *testing.T) {
	const tokens = 16 * maxChunks
	p := oneToken(tensor.Float64, false, 1, []float64{0, 0}, nil, nil, nil)
	p.t = tokens
	for i := range tokens {
		p.g = append(p.g, 1, 1)
		large, small := 0.0, 0x1p50
		if i%4 == 0 {
			large, small = 0x1p1000, 0
		}
		p.rows[0], p.rows[1] = append(p.rows[0], large, small), append(p.rows[1], -large, -small)
	}
	x := p.place(t, dense, tensor.Float64)
	x.run(t, newDevice(t, 2))
	if got := values(t, x.grads.ProjWeight); !math.IsInf(got[0], 1) || got[1] != tokens*3/4*0x1p100 {
		t.Errorf("dw is %v, want Inf and %v", got, tokens*3/4*0x1p100)
	}
}

// Rows are rounded to bfloat16 as tensors are.
func TestBlockAttnResStoresRows(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	var x []float64
	for e := -160; e <= 140; e++ {
		for _, m := range []float64{1, 1 + 0x1p-8, 1 + 0x1p-7, 1 + 0x3p-8, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40, 2 - 0x1p-8, 2 - 0x1p-9, 2 - 0x1p-40, 1 + r.Float64()} {
			x = append(x, math.Ldexp(m, e), -math.Ldexp(m, e))
		}
	}
	x = append(x, 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 0x1p-1074, math.MaxFloat64)
	got := make([]uint16, len(x))
	storeBFloat16Row(got, x)
	for i, v := range x {
		if want := tensor.BFloat16FromFloat64(v); got[i] != want {
			t.Errorf("%v is stored as %04x, want %04x", v, got[i], want)
		}
	}
}
