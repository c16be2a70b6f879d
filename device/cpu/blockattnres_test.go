package cpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// depth is a call of the operator as plain numbers, exact in dtype.
type depth struct {
	dtype       tensor.DType
	b, t, d     int
	rows        [][]float64 // L of (B,T,D)
	partial     bool        // the last row is the partial block
	w, gamma, g []float64
	scale, eps  float64
	norm        bool
}

func newDepth(r *rand.Rand, dtype tensor.DType, b, t, n, d int, partial, norm bool, scale float64) *depth {
	p := &depth{dtype: dtype, b: b, t: t, d: d, partial: partial, norm: norm, scale: scale, eps: 1e-6}
	l := n
	if partial {
		l++
	}
	for range l {
		p.rows = append(p.rows, rounded(dtype, numbers(r, b*t*d, -2, 2)))
	}
	c := 1.5 / math.Sqrt(float64(d)) // logits of a few units for every D
	p.w, p.gamma = rounded(dtype, numbers(r, d, -c, c)), rounded(dtype, numbers(r, d, -1.5, 1.5))
	p.g = rounded(dtype, numbers(r, b*t*d, -1, 1))
	return p
}

// answer is every output and gradient, and of what size the terms of dw and dgamma are.
type answer struct {
	of             map[string][]float64
	wTerms, gTerms []float64
	top            float64 // largest |logit|
}

func blockName(i int) string { return fmt.Sprintf("grad_blocks[%d]", i) }

// reference is the definition and its chain rule, step by step as in the
// operator's document: keys, logits, softmax, weighted sum, and back.
func (p *depth) reference() answer {
	l, d := len(p.rows), p.d
	a := answer{of: map[string][]float64{}, wTerms: make([]float64, d), gTerms: make([]float64, d)}
	dw, dgamma := make([]float64, d), make([]float64, d)
	for token := range p.b * p.t {
		at := func(x []float64) []float64 { return x[token*d : (token+1)*d] }
		key, rms, logit := make([][]float64, l), make([]float64, l), make([]float64, l)
		for i := range l {
			v := at(p.rows[i])
			rms[i] = 1
			if p.norm {
				var squares float64
				for _, x := range v {
					squares += x * x
				}
				rms[i] = math.Sqrt(squares/float64(d) + p.eps)
			}
			for j, x := range v {
				k := x
				if p.norm {
					k = x / rms[i] * p.gamma[j]
				}
				key[i] = append(key[i], k)
				logit[i] += k * p.w[j] * p.scale
			}
			a.top = max(a.top, math.Abs(logit[i]))
		}
		alpha, total := make([]float64, l), 0.0
		for i, x := range logit {
			alpha[i] = math.Exp(x - slices.Max(logit))
			total += alpha[i]
		}
		h, dalpha, mean := make([]float64, d), make([]float64, l), 0.0
		for i := range l {
			alpha[i] /= total
			for j, x := range at(p.rows[i]) {
				h[j] += alpha[i] * x
				dalpha[i] += at(p.g)[j] * x
			}
			mean += alpha[i] * dalpha[i]
		}
		for i := range l {
			v, dlogit, c := at(p.rows[i]), alpha[i]*(dalpha[i]-mean), 0.0
			dkey := make([]float64, d)
			for j := range d {
				dkey[j] = dlogit * p.scale * p.w[j]
				dw[j] += p.scale * dlogit * key[i][j]
				a.wTerms[j] += math.Abs(p.scale * key[i][j] * alpha[i] * (math.Abs(dalpha[i]) + math.Abs(mean)))
				if p.norm {
					c += p.gamma[j] * dkey[j] * v[j]
					dgamma[j] += dkey[j] * v[j] / rms[i]
					a.gTerms[j] += math.Abs(p.scale * p.w[j] * v[j] / rms[i] * alpha[i] * (math.Abs(dalpha[i]) + math.Abs(mean)))
				}
			}
			name := blockName(i)
			if p.partial && i == l-1 {
				name = "grad_partial_block"
			}
			for j := range d {
				through := dkey[j]
				if p.norm {
					through = p.gamma[j]*dkey[j]/rms[i] - v[j]*c/(float64(d)*rms[i]*rms[i]*rms[i])
				}
				a.of[name] = append(a.of[name], alpha[i]*at(p.g)[j]+through)
			}
		}
		a.of["output"] = append(a.of["output"], h...)
		a.of["alpha_cache"] = append(a.of["alpha_cache"], alpha...)
		if p.norm {
			a.of["rms_cache"] = append(a.of["rms_cache"], rms...)
		}
	}
	a.of["grad_proj_weight"] = dw
	if p.norm {
		a.of["grad_rmsnorm_gamma"] = dgamma
	}
	return a
}

// placed is a depth as tensors.
type placed struct {
	args  *device.BlockAttnResArgs
	out   *device.BlockAttnResOut
	gradH *tensor.Tensor
	grads *device.BlockAttnResGrads
}

// place lays all tensors out in a layout. Weight gradients are float64, so
// that they show what was added up.
func (p *depth) place(t testing.TB, lay layout, cache tensor.DType) *placed {
	t.Helper()
	shape, l := []int{p.b, p.t, p.d}, len(p.rows)
	x := &placed{
		args:  &device.BlockAttnResArgs{Scale: p.scale, Eps: p.eps, RMSNorm: p.norm, ProjWeight: laid(t, lay, p.dtype, p.w, p.d)},
		out:   &device.BlockAttnResOut{H: laid(t, lay, p.dtype, nil, shape...), Alpha: laid(t, lay, cache, nil, p.b, p.t, l)},
		gradH: laid(t, lay, p.dtype, p.g, shape...),
		grads: &device.BlockAttnResGrads{ProjWeight: laid(t, lay, tensor.Float64, nil, p.d)},
	}
	if p.norm {
		x.args.RMSNormGamma = laid(t, lay, p.dtype, p.gamma, p.d)
		x.out.RMS = laid(t, lay, cache, nil, p.b, p.t, l, 1)
		x.grads.RMSNormGamma = laid(t, lay, tensor.Float64, nil, p.d)
	}
	for i, r := range p.rows {
		row, grad := laid(t, lay, p.dtype, r, shape...), laid(t, lay, p.dtype, nil, shape...)
		if p.partial && i == l-1 {
			x.args.PartialBlock, x.grads.PartialBlock = row, grad
		} else {
			x.args.Blocks, x.grads.Blocks = append(x.args.Blocks, row), append(x.grads.Blocks, grad)
		}
	}
	return x
}

func (x *placed) run(t testing.TB, dev *Device) {
	t.Helper()
	ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
	ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, x.grads))
}

func (x *placed) results() map[string]*tensor.Tensor {
	m := map[string]*tensor.Tensor{"output": x.out.H, "alpha_cache": x.out.Alpha, "rms_cache": x.out.RMS,
		"grad_partial_block": x.grads.PartialBlock, "grad_proj_weight": x.grads.ProjWeight, "grad_rmsnorm_gamma": x.grads.RMSNormGamma}
	for i, g := range x.grads.Blocks {
		m[blockName(i)] = g
	}
	for name, r := range m {
		if r == nil {
			delete(m, name)
		}
	}
	return m
}

func perToken(name string) bool {
	return name != "grad_proj_weight" && name != "grad_rmsnorm_gamma"
}

func sameResults(t *testing.T, what string, got, want *placed) {
	t.Helper()
	g, w := got.results(), want.results()
	if len(g) != len(w) {
		t.Fatalf("%s: %d results, want %d", what, len(g), len(w))
	}
	for name := range w {
		sameBits(t, what+" "+name, g[name], w[name])
	}
}

// rounding counts how many results in 16 bits are the rounded answer itself.
type rounding struct{ exact, all int }

// compare holds every output and gradient against the reference.
func (p *depth) compare(t *testing.T, what string, x *placed, n *rounding) {
	t.Helper()
	want := p.reference()
	results := x.results()
	if len(results) != len(want.of) {
		t.Fatalf("%s: %d results, want %d", what, len(results), len(want.of))
	}
	for name, w := range want.of {
		got := values(t, results[name])
		if len(got) != len(w) {
			t.Fatalf("%s: %s has %d elements, want %d", what, name, len(got), len(w))
		}
		norm := 0.0 // of the row
		for i := range w {
			if i%p.d == 0 && perToken(name) {
				norm = 0
				for _, x := range w[i:min(i+p.d, len(w))] {
					norm += x * x
				}
				norm = math.Sqrt(norm)
			}
			diff, limit := math.Abs(got[i]-w[i]), 0.0
			switch name {
			case "alpha_cache":
				limit = 4e-6
				if p.dtype == tensor.Float64 {
					limit = 1e-13 * (1 + want.top)
				}
			case "rms_cache":
				limit = 2e-7 * w[i]
			case "grad_proj_weight":
				limit = 1e-6 * (1 + want.top) * want.wTerms[i]
			case "grad_rmsnorm_gamma":
				limit = 1e-6 * (1 + want.top) * want.gTerms[i]
			default:
				// The rows of one token meet in its sums: dv may be small beside what it is made of.
				limit = 3e-7 * (1 + want.top) * max(norm, 1)
				switch {
				case p.dtype == tensor.Float64:
					limit = 1e-13 * (1 + want.top) * max(norm, 1)
				case p.dtype.IsHalf():
					r := tensor.Round(p.dtype, w[i])
					n.all++
					if got[i] == r {
						n.exact++
					}
					diff, limit = math.Abs(got[i]-r), max(ulp(p.dtype, r), limit)
				}
			}
			if !(diff <= limit) {
				t.Fatalf("%s: %s element %d is %v, want %v (off by %.3g, allowed %.3g)", what, name, i, got[i], w[i], diff, limit)
			}
		}
	}
}

// The reference's gradients are differences of its own outputs.
func TestBlockAttnResReference(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 1))
	for _, norm := range []bool{true, false} {
		p := newDepth(r, tensor.Float64, 2, 1, 2, 3, true, norm, -0.7)
		loss := func() (sum float64) {
			for i, h := range p.reference().of["output"] {
				sum += h * p.g[i]
			}
			return sum
		}
		want := p.reference().of
		inputs := map[string][]float64{blockName(0): p.rows[0], blockName(1): p.rows[1], "grad_partial_block": p.rows[2], "grad_proj_weight": p.w}
		if norm {
			inputs["grad_rmsnorm_gamma"] = p.gamma
		}
		for name, x := range inputs {
			for i, keep := range x {
				const step = 1e-5
				x[i] = keep + step
				up := loss()
				x[i] = keep - step
				down := loss()
				x[i] = keep
				if d := (up - down) / (2 * step); math.Abs(d-want[name][i]) > 1e-8 {
					t.Errorf("norm %v: %s element %d is %v, by differences %v", norm, name, i, want[name][i], d)
				}
			}
		}
	}
}

func TestBlockAttnResAnswers(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	dev := newDevice(t, 2)
	scales := []float64{1, -0.7, 3, 0}
	widths := []int{512, 1536}
	for d := 1; d <= 129; d += 2 {
		widths = append(widths, d)
	}
	for _, dtype := range floats {
		var n rounding
		check := func(b, steps, blocks, d int, partial, norm bool, scale float64) {
			t.Helper()
			p := newDepth(r, dtype, b, steps, blocks, d, partial, norm, scale)
			x := p.place(t, dense, dtype.Wide())
			x.run(t, dev)
			p.compare(t, label(dtype, " ", b, "x", steps, "x", blocks, "x", d, " partial ", partial, " norm ", norm, " scale ", scale), x, &n)
		}
		for i, d := range widths {
			check(1+i%2, 1+i%4, []int{1, 2, 25}[i%3], d, i/2%2 == 0, i%4 != 3, scales[i/3%4])
		}
		for _, partial := range []bool{false, true} {
			for _, norm := range []bool{false, true} {
				for _, scale := range scales {
					for _, blocks := range []int{1, 2, 25, 127} {
						check(1, 2, blocks, 19, partial, norm, scale)
					}
				}
			}
		}
		check(2, 9, 25, 512, true, true, 1)
		if dtype.IsHalf() {
			if n.all < 200000 || float64(n.exact) < 0.999*float64(n.all) {
				t.Errorf("%v: %d of %d results are the rounded answer", dtype, n.exact, n.all)
			}
		}
	}
}

// Rows of very different sizes in one token.
func TestBlockAttnResSizes(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 1))
	dev := newDevice(t, 2)
	for _, dtype := range floats {
		for _, sizes := range [][]float64{{1e-3, 1, 1e3}, {1e3, 1e3, 1e2}, {1e-2, 1e-1, 1e-3}, {1e-5, 1, 1e3}} {
			if dtype == tensor.Float16 && sizes[0] < 1e-4 {
				continue // subnormal rows are no rows of that size
			}
			p := newDepth(r, dtype, 1, 5, 3, 33, false, true, 1)
			for i, row := range p.rows {
				for j := range row {
					row[j] = tensor.Round(dtype, row[j]*sizes[i])
				}
			}
			x := p.place(t, dense, dtype.Wide())
			x.run(t, dev)
			want := p.reference()
			// The gradients of small rows beside large ones are large, and so are the sums in them.
			for name, w := range want.of {
				if !perToken(name) {
					continue
				}
				got := values(t, x.results()[name])
				for i := range w {
					per := len(w) / (p.b * p.t)
					norm := 0.0
					for _, y := range w[i/per*per : (i/per+1)*per] {
						norm = math.Hypot(norm, y)
					}
					limit := 2e-4 * norm
					if dtype.IsHalf() {
						limit = max(limit, ulp(dtype, tensor.Round(dtype, w[i])))
					}
					if r := tensor.Round(dtype, w[i]); got[i] != r && !(math.Abs(got[i]-w[i]) <= limit) { // equal: also both infinite
						t.Fatalf("%v %v: %s element %d is %v, want %v", dtype, sizes, name, i, got[i], w[i])
					}
				}
			}
		}
	}
}

// Multiplying all rows by a power of two multiplies h, dw and dgamma by it and
// leaves alpha and dv alone (eps is 0), over the whole range of the format and
// with caches that cannot hold the rms; multiplying g multiplies every gradient.
func TestBlockAttnResExtremeRows(t *testing.T) {
	dev := newDevice(t, 2)
	for _, c := range []struct {
		dtype, cache tensor.DType
		rows, g      int // exponents
		tol          float64
	}{
		{tensor.Float64, tensor.Float64, 664, 0, 1e-13}, {tensor.Float64, tensor.Float64, -664, 0, 1e-13},
		{tensor.Float64, tensor.Float64, 1018, 0, 1e-13}, {tensor.Float64, tensor.Float64, -1000, 0, 1e-13},
		{tensor.Float64, tensor.Float64, -1040, 0, 1e-7}, // subnormal rows hold few digits
		{tensor.Float64, tensor.Float64, 400, 1000, 1e-13}, {tensor.Float64, tensor.Float64, -400, -1000, 1e-13},
		{tensor.Float64, tensor.Float64, 1018, -1000, 1e-13}, {tensor.Float64, tensor.Float64, -1000, 1000, 1e-13},
		{tensor.Float64, tensor.Float64, 0, 1000, 1e-13}, {tensor.Float64, tensor.Float64, 0, -990, 1e-13},
		{tensor.Float64, tensor.Float32, 664, 0, 1e-6}, {tensor.Float64, tensor.Float32, -664, 0, 1e-6},
		{tensor.Float64, tensor.Float32, 140, 0, 1e-6}, {tensor.Float64, tensor.Float32, -140, 0, 1e-6},
		{tensor.Float32, tensor.Float32, 124, 0, 1e-6}, {tensor.Float32, tensor.Float32, -120, 0, 1e-6},
		{tensor.Float32, tensor.Float32, -128, 0, 1e-3}, // so do these
		{tensor.Float32, tensor.Float64, 124, 0, 1e-6},
		{tensor.BFloat16, tensor.Float32, 124, 0, 0.01}, {tensor.BFloat16, tensor.Float32, -100, 0, 0.01},
	} {
		r := rand.New(rand.NewPCG(24, 1))
		p := newDepth(r, c.dtype, 1, 2, 3, 13, true, true, 1)
		p.eps = 0
		want := p.reference()
		for _, row := range p.rows {
			for i := range row {
				row[i] = tensor.Round(c.dtype, math.Ldexp(row[i], c.rows))
			}
		}
		for i := range p.g {
			p.g[i] = tensor.Round(c.dtype, math.Ldexp(p.g[i], c.g))
		}
		x := p.place(t, dense, c.cache)
		x.run(t, dev)
		for name, w := range want.of {
			if name == "rms_cache" && c.cache != c.dtype {
				continue // may be beyond the cache
			}
			exp := c.g
			switch name {
			case "output", "rms_cache":
				exp = c.rows
			case "alpha_cache":
				exp = 0
			case "grad_proj_weight", "grad_rmsnorm_gamma":
				exp = c.rows + c.g
			}
			if exp < -1010 || exp > 1015 {
				continue // the answer itself is beyond the format
			}
			for i, got := range values(t, x.results()[name]) {
				y, tol := math.Ldexp(w[i], exp), c.tol
				if name == "alpha_cache" || name == "rms_cache" {
					tol = max(tol, 1e-6)
				}
				if !(math.Abs(got-y) <= tol*math.Ldexp(max(1, math.Abs(w[i])), exp)) {
					t.Fatalf("%v caches %v, rows 2^%d, g 2^%d: %s element %d is %v, want %v", c.dtype, c.cache, c.rows, c.g, name, i, got, y)
				}
			}
		}
	}
	// One huge source that has no weight, and one tiny: the others are as without them.
	p := newDepth(rand.New(rand.NewPCG(25, 1)), tensor.Float64, 1, 1, 3, 5, false, true, 1)
	p.eps, p.w, p.gamma = 0, []float64{2000, 0, 0, 0, 0}, []float64{1, 1, 1, 1, 1}
	copy(p.rows[0], []float64{-1e300, 1e300, 0, 0, 1e300}) // a logit of -1291
	copy(p.rows[1], []float64{1e-300, 2e-300, 3e-300, 4e-300, 0})
	copy(p.rows[2], []float64{1e-300, 2e-300, 4e-300, 3e-300, 0})
	x := p.place(t, dense, tensor.Float64)
	x.run(t, dev)
	if a := values(t, x.out.Alpha); a[0] != 0 || a[1] != 0.5 || a[2] != 0.5 {
		t.Fatalf("weights %v", a)
	}
	sum := 0.0
	for i, g := range p.g[:5] {
		sum += g * (p.rows[1][i] - p.rows[2][i]) / 1e-300
	}
	rms := math.Sqrt(30.0 / 5)
	// Along axis 0: u/rms - v logit/(D rms^2), of the row over 1e-300.
	want := 0.5*p.g[0] + sum/4*(2000/rms-2000/rms/(5*rms*rms))
	if got := values(t, x.grads.Blocks[1])[0]; math.Abs(got-want) > 1e-9*math.Abs(want) {
		t.Errorf("a tiny row beside a huge one: %v, want %v", got, want)
	}
	for _, v := range values(t, x.grads.Blocks[0]) {
		if v != 0 {
			t.Errorf("a source of no weight has the gradient %v", v)
		}
	}
}

// Logits of a thousand and more: nothing overflows, and the weights are right.
func TestBlockAttnResLargeLogits(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 1))
	dev := newDevice(t, 2)
	for _, scale := range []float64{100, 1e3, 1e5, -1e5, 1e300} {
		for _, norm := range []bool{true, false} {
			p := newDepth(r, tensor.Float64, 2, 3, 4, 17, true, norm, scale)
			x := p.place(t, dense, tensor.Float64)
			x.run(t, dev)
			want := p.reference().of
			for name, y := range x.results() {
				for i, got := range values(t, y) {
					if got-got != 0 {
						t.Fatalf("scale %v: %s has %v", scale, name, got)
					}
					if w := want[name][i]; name == "output" && scale <= 1e5 && math.Abs(got-w) > 1e-9 {
						t.Fatalf("scale %v: output %d is %v, want %v", scale, i, got, w)
					}
				}
			}
		}
	}
}

func TestBlockAttnResLayoutsAndThreads(t *testing.T) {
	r := rand.New(rand.NewPCG(27, 1))
	for _, dtype := range floats {
		for _, d := range []int{1, 7, 8, 33, 129} {
			p := newDepth(r, dtype, 2, 41, 3, d, true, true, -0.7)
			want := p.place(t, dense, dtype.Wide())
			want.run(t, newDevice(t, 1))
			for lay := range nLayouts {
				x := p.place(t, lay, dtype.Wide())
				x.run(t, newDevice(t, 2))
				sameResults(t, label(dtype, " D=", d, " layout ", int(lay)), x, want)
				for name, y := range x.results() {
					outsideIntact(t, name, y)
				}
			}
			for _, threads := range []int{2, 3, 7} {
				x := p.place(t, dense, dtype.Wide())
				x.run(t, newDevice(t, threads))
				sameResults(t, label(dtype, " D=", d, " threads ", threads), x, want)
			}
		}
		// A gradient of stride 0, and one tensor as two sources.
		p := newDepth(r, dtype, 2, 5, 2, 9, false, true, 1)
		for i := range p.g {
			p.g[i] = p.g[i%9]
		}
		p.rows[1] = p.rows[0]
		want := p.place(t, dense, dtype.Wide())
		want.run(t, newDevice(t, 1))
		x := p.place(t, dense, dtype.Wide())
		x.gradH = must[*tensor.Tensor](t)(laid(t, dense, dtype, p.g[:9], 9).Expand(2, 5, 9))
		x.args.Blocks[1] = x.args.Blocks[0]
		x.run(t, newDevice(t, 2))
		sameResults(t, label(dtype, " stride 0"), x, want)
		// Blocks of stride 0 along T.
		for _, row := range p.rows {
			for i := range row {
				row[i] = row[i/45*45+i%9]
			}
		}
		want = p.place(t, dense, dtype.Wide())
		want.run(t, newDevice(t, 1))
		x = p.place(t, dense, dtype.Wide())
		for i := range x.args.Blocks {
			x.args.Blocks[i] = must[*tensor.Tensor](t)(must[*tensor.Tensor](t)(x.args.Blocks[i].Slice(1, 0, 1)).Expand(2, 5, 9))
		}
		x.run(t, newDevice(t, 2))
		sameResults(t, label(dtype, " expanded blocks"), x, want)
	}
}

// token is one token of a depth.
func (p *depth) token(i int) *depth {
	q := *p
	q.b, q.t, q.rows = 1, 1, nil
	for _, row := range p.rows {
		q.rows = append(q.rows, row[i*p.d:(i+1)*p.d])
	}
	q.g = p.g[i*p.d : (i+1)*p.d]
	return &q
}

func tokenBits(t *testing.T, x *tensor.Tensor, tokens, i int) []uint64 {
	t.Helper()
	b := bitsOf(t, x)
	per := len(b) / tokens
	return b[i*per : (i+1)*per]
}

// A token's results depend on nothing but the token, whatever the others hold.
func TestBlockAttnResTokensApart(t *testing.T) {
	r := rand.New(rand.NewPCG(28, 1))
	dev := newDevice(t, 2)
	for _, dtype := range floats {
		p := newDepth(r, dtype, 3, 47, 4, 11, true, true, 1)
		clean := p.place(t, dense, dtype.Wide())
		clean.run(t, dev)
		for _, i := range []int{0, 1, 46, 47, 100, 140} {
			alone := p.token(i).place(t, dense, dtype.Wide())
			alone.run(t, dev)
			for name, x := range clean.results() {
				if perToken(name) && !slices.Equal(tokenBits(t, x, 141, i), bitsOf(t, alone.results()[name])) {
					t.Fatalf("%v: %s of token %d depends on the others", dtype, name, i)
				}
			}
		}
		const bad = 60
		for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, into := range [][]float64{p.rows[2], p.rows[4], p.g} {
				keep := into[bad*11+5]
				into[bad*11+5] = value
				x := p.place(t, dense, dtype.Wide())
				x.run(t, dev)
				into[bad*11+5] = keep
				for name, y := range x.results() {
					if !perToken(name) {
						if v := values(t, y)[5]; v == v {
							t.Errorf("%v: %s does not see %v", dtype, name, value)
						}
						continue
					}
					for i := range 141 {
						if i != bad && !slices.Equal(tokenBits(t, y, 141, i), tokenBits(t, clean.results()[name], 141, i)) {
							t.Fatalf("%v: %v in token %d changes %s of token %d", dtype, value, bad, name, i)
						}
					}
				}
			}
		}
	}
}

func TestBlockAttnResExact(t *testing.T) {
	r := rand.New(rand.NewPCG(29, 1))
	dev := newDevice(t, 2)
	zeroGrads := func(what string, x *placed, names ...string) {
		t.Helper()
		for _, name := range names {
			for _, v := range values(t, x.results()[name]) {
				if v != 0 {
					t.Fatalf("%s: %s has %v, want 0", what, name, v)
				}
			}
		}
	}
	uniform := func(what string, x *placed, l int) {
		t.Helper()
		d := x.out.Alpha.DType()
		for _, a := range values(t, x.out.Alpha) {
			if a != tensor.Round(d, 1/float64(l)) {
				t.Fatalf("%s: a weight is %v, want 1/%d", what, a, l)
			}
		}
	}
	for _, dtype := range floats {
		for _, norm := range []bool{true, false} {
			what := label(dtype, " norm ", norm)
			one := newDepth(r, dtype, 2, 3, 1, 13, false, norm, -0.7)
			one.rows[0][3] = math.Copysign(0, -1)
			x := one.place(t, dense, dtype.Wide())
			x.run(t, dev)
			sameBits(t, what+" one source", x.out.H, x.args.Blocks[0])
			sameBits(t, what+" one source's gradient", x.grads.Blocks[0], x.gradH)
			names := []string{"grad_proj_weight"}
			if norm {
				names = append(names, "grad_rmsnorm_gamma")
			}
			zeroGrads(what+" one source", x, names...)

			p := newDepth(r, dtype, 2, 3, 6, 13, true, norm, 0)
			x = p.place(t, dense, dtype.Wide())
			x.run(t, dev)
			uniform(what+" scale 0", x, 7)
			zeroGrads(what+" scale 0", x, names...)

			p = newDepth(r, dtype, 2, 3, 4, 13, true, norm, 3)
			for i := range p.rows {
				p.rows[i] = p.rows[0]
			}
			x = p.place(t, dense, dtype.Wide())
			x.run(t, dev)
			uniform(what+" equal rows", x, 5)

			p = newDepth(r, dtype, 2, 3, 2, 13, true, norm, 1)
			for _, row := range p.rows {
				clear(row)
			}
			x = p.place(t, dense, dtype.Wide())
			x.run(t, dev)
			uniform(what+" zero rows", x, 3)
			zeroGrads(what+" zero rows", x, append(names, "output")...)
			if norm {
				for _, v := range values(t, x.out.RMS) {
					if v != tensor.Round(x.out.RMS.DType(), math.Sqrt(1e-6)) {
						t.Fatalf("%s: the rms of a zero row is %v", what, v)
					}
				}
				p = newDepth(r, dtype, 2, 3, 2, 13, true, true, 1)
				clear(p.gamma)
				x = p.place(t, dense, dtype.Wide())
				x.run(t, dev)
				uniform(what+" gamma 0", x, 3)
				zeroGrads(what+" gamma 0", x, "grad_proj_weight")
			}
		}
	}
}

// 64 blocks of +1 and 64 of -1 with g = 1/2 make each column of dw B*T; a float32 or
// 16-bit accumulator stops long before.
func TestBlockAttnResAccumulator(t *testing.T) {
	b, steps := 8, 32768
	if testing.Short() {
		steps = 1024
	}
	constant := func(dtype tensor.DType, v float64, shape ...int) *tensor.Tensor {
		return must[*tensor.Tensor](t)(laid(t, dense, dtype, []float64{v}, 1).Expand(shape...))
	}
	a := &device.BlockAttnResArgs{ProjWeight: constant(tensor.BFloat16, 0, 2), RMSNormGamma: constant(tensor.BFloat16, 1, 2), Scale: 1, RMSNorm: true}
	for i := range 127 {
		a.Blocks = append(a.Blocks, constant(tensor.BFloat16, float64(1-i%2*2), b, steps, 2))
	}
	a.PartialBlock = constant(tensor.BFloat16, -1, b, steps, 2)
	// The caches are those of the forward: uniform weights, and an rms of 1.
	saved := &device.BlockAttnResOut{Alpha: constant(tensor.Float32, 1.0/128, b, steps, 128), RMS: constant(tensor.Float32, 1, b, steps, 128, 1)}
	grads := &device.BlockAttnResGrads{ProjWeight: laid(t, dense, tensor.Float32, nil, 2), RMSNormGamma: laid(t, dense, tensor.Float32, nil, 2)}
	ok(t, newDevice(t, 2).BlockAttnResBackward(bg, a, saved, constant(tensor.BFloat16, 0.5, b, steps, 2), grads))
	for _, v := range values(t, grads.ProjWeight) {
		if v != float64(b*steps) {
			t.Errorf("dw is %v, want %d", v, b*steps)
		}
	}
	for _, v := range values(t, grads.RMSNormGamma) {
		if v != 0 {
			t.Errorf("dgamma is %v, want 0", v)
		}
	}
}

func TestBlockAttnResEmpty(t *testing.T) {
	r := rand.New(rand.NewPCG(30, 1))
	for _, shape := range [][2]int{{0, 3}, {3, 0}, {0, 0}} {
		p := newDepth(r, tensor.BFloat16, shape[0], shape[1], 2, 5, true, true, -0.7)
		p.gamma[1], p.w[2] = math.Inf(1), math.NaN()
		x := p.place(t, dense, tensor.Float32)
		x.run(t, newDevice(t, 2))
		for _, g := range []*tensor.Tensor{x.grads.ProjWeight, x.grads.RMSNormGamma} {
			for _, b := range bitsOf(t, g) {
				if b != 0 {
					t.Errorf("%v: a weight gradient of no tokens has the bits %#x", shape, b)
				}
			}
		}
	}
}

// What is not wanted is not computed, and changes nothing of the rest.
func TestBlockAttnResNotWanted(t *testing.T) {
	p := newDepth(rand.New(rand.NewPCG(31, 1)), tensor.Float32, 2, 9, 3, 7, true, true, 1)
	dev := newDevice(t, 2)
	want := p.place(t, dense, tensor.Float32)
	want.run(t, dev)
	for name := range want.results() {
		x := p.place(t, dense, tensor.Float32)
		x.run(t, dev)
		var i int
		switch {
		case name == "output":
			continue
		case name == "rms_cache":
			x.out = &device.BlockAttnResOut{H: laid(t, dense, tensor.Float32, nil, 2, 9, 7), Alpha: laid(t, dense, tensor.Float32, nil, 2, 9, 4)}
			ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
		case name == "alpha_cache":
			x.out = &device.BlockAttnResOut{H: laid(t, dense, tensor.Float32, nil, 2, 9, 7)}
			ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
		default:
			x = p.place(t, dense, tensor.Float32)
			if _, err := fmt.Sscanf(name, "grad_blocks[%d]", &i); err == nil {
				x.grads.Blocks[i] = nil
			}
			switch name {
			case "grad_partial_block":
				x.grads.PartialBlock = nil
			case "grad_proj_weight":
				x.grads.ProjWeight = nil
			case "grad_rmsnorm_gamma":
				x.grads.RMSNormGamma = nil
			}
			x.run(t, dev)
		}
		for other, y := range x.results() {
			sameBits(t, "without "+name+": "+other, y, want.results()[other])
		}
	}
	// Only the partial block's gradient, and nothing at all.
	x := p.place(t, dense, tensor.Float32)
	part := x.grads.PartialBlock
	ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
	ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, &device.BlockAttnResGrads{PartialBlock: part}))
	sameBits(t, "partial block alone", part, want.grads.PartialBlock)
	ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, &device.BlockAttnResGrads{}))
}

// A weight gradient in 16 bits is the float64 sum rounded once; the backward
// takes alpha and rms from the caches.
func TestBlockAttnResRoundsOnceAndReadsCaches(t *testing.T) {
	p := newDepth(rand.New(rand.NewPCG(32, 1)), tensor.BFloat16, 4, 50, 3, 65, true, true, 1)
	dev := newDevice(t, 2)
	wide, narrow := p.place(t, dense, tensor.Float32), p.place(t, dense, tensor.Float32)
	narrow.grads.ProjWeight, narrow.grads.RMSNormGamma = laid(t, dense, tensor.BFloat16, nil, 65), laid(t, dense, tensor.Float16, nil, 65)
	wide.run(t, dev)
	narrow.run(t, dev)
	for name, d := range map[string]tensor.DType{"grad_proj_weight": tensor.BFloat16, "grad_rmsnorm_gamma": tensor.Float16} {
		if got, want := values(t, narrow.results()[name]), rounded(d, values(t, wide.results()[name])); !slices.Equal(got, want) {
			t.Errorf("%s is not rounded once", name)
		}
	}
	dv := bitsOf(t, wide.grads.Blocks[0])
	for name, cache := range map[string]*tensor.Tensor{"alpha": wide.out.Alpha, "rms": wide.out.RMS} {
		keep := values(t, cache)
		changed := slices.Clone(keep)
		for i := range changed {
			changed[i] *= 1.5 + float64(i%2)
		}
		ok(t, cache.SetFloat64s(changed))
		ok(t, dev.BlockAttnResBackward(bg, wide.args, wide.out, wide.gradH, wide.grads))
		if slices.Equal(bitsOf(t, wide.grads.Blocks[0]), dv) {
			t.Errorf("the %s cache is not read", name)
		}
		ok(t, cache.SetFloat64s(keep))
	}
	// The caches of float64 hold what those of float32 cannot.
	for _, e := range []int{200, -200} {
		p := newDepth(rand.New(rand.NewPCG(33, 1)), tensor.Float64, 1, 2, 2, 5, true, true, 1)
		p.eps = 0
		for _, row := range p.rows {
			for i := range row {
				row[i] = math.Ldexp(row[i], e)
			}
		}
		x := p.place(t, dense, tensor.Float64)
		x.run(t, dev)
		before := bitsOf(t, x.grads.ProjWeight)
		v := values(t, x.out.RMS)
		for i := range v {
			v[i] *= 2
		}
		ok(t, x.out.RMS.SetFloat64s(v))
		ok(t, dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, x.grads))
		if slices.Equal(bitsOf(t, x.grads.ProjWeight), before) {
			t.Errorf("rows of 2^%d: the rms cache is not read", e)
		}
	}
}

// Every refusal names its argument, and nothing is written.
func TestBlockAttnResRefuses(t *testing.T) {
	bf := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.BFloat16, nil, shape...) }
	f32 := func(shape ...int) *tensor.Tensor { return laid(t, dense, tensor.Float32, nil, shape...) }
	dev := newDevice(t, 2)
	cases := []struct {
		name   string
		change func(x *placed)
		kind   error
		says   string
	}{
		{"no blocks", func(x *placed) { x.args.Blocks = nil }, tensor.ErrCount, "blocks is 0 tensors"},
		{"128 blocks", func(x *placed) { x.args.Blocks = slices.Repeat(x.args.Blocks[:1], 128) }, tensor.ErrCount, "blocks is 128 tensors"},
		{"nil block", func(x *placed) { x.args.Blocks[0] = nil }, tensor.ErrMissing, "blocks[0] is nil"},
		{"rank", func(x *placed) { x.args.Blocks[1] = bf(2, 3) }, tensor.ErrRank, "blocks[1] is (2,3), want (B,T,D)"},
		{"shape", func(x *placed) { x.args.Blocks[1] = bf(2, 3, 4) }, tensor.ErrShape, "blocks[1] is (2,3,4), want (2,3,5)"},
		{"dtype", func(x *placed) { x.args.Blocks[1] = f32(2, 3, 5) }, tensor.ErrDType, "blocks[1] is float32, want bfloat16"},
		{"integers", func(x *placed) { x.args.Blocks[0] = laid(t, dense, tensor.Int32, nil, 2, 3, 5) }, tensor.ErrDType, "blocks[0] is int32, want a floating-point type"},
		{"partial's rank", func(x *placed) { x.args.PartialBlock = bf(30) }, tensor.ErrRank, "partial_block is (30)"},
		{"partial's shape", func(x *placed) { x.args.PartialBlock = bf(3, 2, 5) }, tensor.ErrShape, "partial_block is (3,2,5), want (2,3,5)"},
		{"partial's dtype", func(x *placed) { x.args.PartialBlock = f32(2, 3, 5) }, tensor.ErrDType, "partial_block is float32"},
		{"D = 0", func(x *placed) { x.args.Blocks, x.args.PartialBlock = []*tensor.Tensor{bf(2, 3, 0)}, nil }, tensor.ErrShape, "D of at least 1"},
		{"no weight", func(x *placed) { x.args.ProjWeight = nil }, tensor.ErrMissing, "proj_weight is nil"},
		{"weight's shape", func(x *placed) { x.args.ProjWeight = bf(1, 5) }, tensor.ErrShape, "proj_weight is (1,5), want (5)"},
		{"weight's dtype", func(x *placed) { x.args.ProjWeight = f32(5) }, tensor.ErrDType, "proj_weight is float32"},
		{"no gamma", func(x *placed) { x.args.RMSNormGamma = nil }, tensor.ErrMissing, "rmsnorm_gamma is nil"},
		{"gamma's shape", func(x *placed) { x.args.RMSNormGamma = bf(4) }, tensor.ErrShape, "rmsnorm_gamma is (4), want (5)"},
		{"gamma's dtype", func(x *placed) { x.args.RMSNormGamma = f32(5) }, tensor.ErrDType, "rmsnorm_gamma is float32"},
		{"eps negative", func(x *placed) { x.args.Eps = -1 }, tensor.ErrValue, "rmsnorm_eps is -1"},
		{"eps NaN", func(x *placed) { x.args.Eps = math.NaN() }, tensor.ErrValue, "rmsnorm_eps is NaN"},
		{"eps Inf", func(x *placed) { x.args.Eps = math.Inf(1) }, tensor.ErrValue, "rmsnorm_eps is +Inf"},
		{"scale NaN", func(x *placed) { x.args.Scale = math.NaN() }, tensor.ErrValue, "scale is NaN"},
		{"scale Inf", func(x *placed) { x.args.Scale = math.Inf(-1) }, tensor.ErrValue, "scale is -Inf"},
	}
	both := len(cases) // those before are refused by the forward and by the backward
	forward := append(cases[:both:both], []struct {
		name   string
		change func(x *placed)
		kind   error
		says   string
	}{
		{"gamma's shape when off", func(x *placed) { x.args.RMSNorm, x.out.RMS, x.args.RMSNormGamma = false, nil, bf(4) }, tensor.ErrShape, "rmsnorm_gamma is (4), want (5)"},
		{"gamma's dtype when off", func(x *placed) { x.args.RMSNorm, x.out.RMS, x.args.RMSNormGamma = false, nil, f32(5) }, tensor.ErrDType, "rmsnorm_gamma is float32"},
		{"rms without norm", func(x *placed) { x.args.RMSNorm = false }, tensor.ErrValue, "rms_cache"},
		{"rms' shape", func(x *placed) { x.out.RMS = f32(2, 3, 3) }, tensor.ErrShape, "rms_cache is (2,3,3), want (2,3,3,1)"},
		{"rms' dtype", func(x *placed) { x.out.RMS = bf(2, 3, 3, 1) }, tensor.ErrDType, "rms_cache is bfloat16, want float32 or float64"},
		{"alpha's shape", func(x *placed) { x.out.Alpha = f32(2, 3, 3, 1) }, tensor.ErrShape, "alpha_cache is (2,3,3,1), want (2,3,3)"},
		{"alpha's dtype", func(x *placed) { x.out.Alpha = bf(2, 3, 3) }, tensor.ErrDType, "alpha_cache is bfloat16"},
		{"no output", func(x *placed) { x.out.H = nil }, tensor.ErrMissing, "output is nil"},
		{"nothing", func(x *placed) { x.out = nil }, tensor.ErrMissing, "output is nil"},
		{"output's shape", func(x *placed) { x.out.H = bf(3, 2, 5) }, tensor.ErrShape, "output is (3,2,5), want (2,3,5)"},
		{"output's dtype", func(x *placed) { x.out.H = f32(2, 3, 5) }, tensor.ErrDType, "output is float32, want bfloat16"},
		{"output in a block", func(x *placed) { x.out.H = x.args.Blocks[1] }, tensor.ErrAlias, "output is in the memory of blocks[1]"},
		{"output in the partial block", func(x *placed) { x.out.H = x.args.PartialBlock }, tensor.ErrAlias, "partial_block"},
		{"expanded output", func(x *placed) { x.out.H = must[*tensor.Tensor](t)(bf(5).Expand(2, 3, 5)) }, tensor.ErrAlias, "output is (2,3,5) with strides"},
		{"alpha in rms", func(x *placed) { x.out.Alpha = must[*tensor.Tensor](t)(x.out.RMS.Squeeze(3)) }, tensor.ErrAlias, "alpha_cache is in the memory of rms_cache"},
	}...)
	backward := append(cases[:both:both], []struct {
		name   string
		change func(x *placed)
		kind   error
		says   string
	}{
		{"no g", func(x *placed) { x.gradH = nil }, tensor.ErrMissing, "grad_h is nil"},
		{"g's shape", func(x *placed) { x.gradH = bf(2, 3, 4) }, tensor.ErrShape, "grad_h is (2,3,4), want (2,3,5)"},
		{"g's dtype", func(x *placed) { x.gradH = f32(2, 3, 5) }, tensor.ErrDType, "grad_h is float32, want bfloat16"},
		{"no caches", func(x *placed) { x.out = nil }, tensor.ErrMissing, "alpha_cache is nil"},
		{"no alpha", func(x *placed) { x.out.Alpha = nil }, tensor.ErrMissing, "alpha_cache is nil"},
		{"alpha's shape", func(x *placed) { x.out.Alpha = f32(2, 3, 2) }, tensor.ErrShape, "alpha_cache is (2,3,2), want (2,3,3)"},
		{"alpha's dtype", func(x *placed) { x.out.Alpha = bf(2, 3, 3) }, tensor.ErrDType, "alpha_cache is bfloat16"},
		{"no rms", func(x *placed) { x.out.RMS = nil }, tensor.ErrMissing, "rms_cache is nil"},
		{"rms' shape", func(x *placed) { x.out.RMS = f32(2, 3, 3) }, tensor.ErrShape, "rms_cache is (2,3,3), want (2,3,3,1)"},
		{"rms' dtype", func(x *placed) { x.out.RMS = bf(2, 3, 3, 1) }, tensor.ErrDType, "rms_cache is bfloat16"},
		{"one gradient too few", func(x *placed) { x.grads.Blocks = x.grads.Blocks[:1] }, tensor.ErrCount, "grad_blocks is 1 tensors, want none or 2"},
		{"gradient's shape", func(x *placed) { x.grads.Blocks[1] = bf(2, 3) }, tensor.ErrShape, "grad_blocks[1] is (2,3), want (2,3,5)"},
		{"gradient's dtype", func(x *placed) { x.grads.Blocks[1] = laid(t, dense, tensor.Int64, nil, 2, 3, 5) }, tensor.ErrDType, "grad_blocks[1] is int64"},
		{"partial gradient's shape", func(x *placed) { x.grads.PartialBlock = bf(5) }, tensor.ErrShape, "grad_partial_block is (5)"},
		{"weight gradient's shape", func(x *placed) { x.grads.ProjWeight = bf(1, 5) }, tensor.ErrShape, "grad_proj_weight is (1,5), want (5)"},
		{"gamma gradient's shape", func(x *placed) { x.grads.RMSNormGamma = bf(4) }, tensor.ErrShape, "grad_rmsnorm_gamma is (4), want (5)"},
		{"gamma gradient without norm", func(x *placed) { x.args.RMSNorm = false }, tensor.ErrValue, "grad_rmsnorm_gamma"},
		{"partial gradient without partial", func(x *placed) {
			x.args.PartialBlock, x.out.RMS, x.out.Alpha = nil, f32(2, 3, 2, 1), f32(2, 3, 2)
		}, tensor.ErrValue, "grad_partial_block"},
		{"gradient in a block", func(x *placed) { x.grads.Blocks[0] = x.args.Blocks[1] }, tensor.ErrAlias, "grad_blocks[0] is in the memory of blocks[1]"},
		{"gradient in g", func(x *placed) { x.grads.PartialBlock = x.gradH }, tensor.ErrAlias, "grad_partial_block is in the memory of grad_h"},
		{"gradients in one", func(x *placed) { x.grads.Blocks[1] = x.grads.Blocks[0] }, tensor.ErrAlias, "grad_blocks[1] is in the memory of grad_blocks[0]"},
		{"nowhere", func(x *placed) { x.grads.Blocks = make([]*tensor.Tensor, 3) }, tensor.ErrCount, "grad_blocks is 3 tensors"},
	}...)
	p := newDepth(rand.New(rand.NewPCG(33, 1)), tensor.BFloat16, 2, 3, 2, 5, true, true, 1)
	for op, list := range map[string][]struct {
		name   string
		change func(x *placed)
		kind   error
		says   string
	}{"blockattnres": forward, "blockattnres backward": backward} {
		for _, c := range list {
			x := p.place(t, dense, tensor.Float32)
			all := x.results()
			c.change(x)
			var err error
			if op == "blockattnres" {
				err = dev.BlockAttnResForward(bg, x.args, x.out)
			} else {
				err = dev.BlockAttnResBackward(bg, x.args, x.out, x.gradH, x.grads)
			}
			var arg *tensor.ArgError
			if !errors.Is(err, c.kind) || !errors.As(err, &arg) || arg.Op != op || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, %s: %v, want %v and %q", op, c.name, err, c.kind, c.says)
			}
			for name, y := range all {
				for _, b := range y.Memory().(*tensor.Host).Bytes() {
					if b != 0xff {
						t.Fatalf("%s, %s: %s was written", op, c.name, name)
					}
				}
			}
		}
		// A nil argument list.
		if err := dev.BlockAttnResForward(bg, nil, nil); !errors.Is(err, tensor.ErrCount) {
			t.Errorf("nil: %v", err)
		}
		if err := dev.BlockAttnResBackward(bg, nil, nil, nil, nil); !errors.Is(err, tensor.ErrCount) {
			t.Errorf("nil: %v", err)
		}
	}
}

// countdown is a context that is cancelled after it was asked a number of times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestBlockAttnResCancelled(t *testing.T) {
	p := newDepth(rand.New(rand.NewPCG(34, 1)), tensor.Float32, 1, 6400, 2, 3, false, true, 1)
	dev := newDevice(t, 1)
	for _, left := range []int{0, 1, 3, 50} {
		x := p.place(t, dense, tensor.Float32)
		if err := dev.BlockAttnResForward(&countdown{bg, left}, x.args, x.out); !errors.Is(err, context.Canceled) {
			t.Errorf("forward after %d: %v", left, err)
		}
		// It stopped within the first chunks: the last token was not reached.
		if h := values(t, x.out.H); h[len(h)-1] == h[len(h)-1] {
			t.Errorf("forward after %d: ran to the end", left)
		}
		ok(t, dev.BlockAttnResForward(bg, x.args, x.out))
		if err := dev.BlockAttnResBackward(&countdown{bg, left}, x.args, x.out, x.gradH, x.grads); !errors.Is(err, context.Canceled) {
			t.Errorf("backward after %d: %v", left, err)
		}
		if w := values(t, x.grads.ProjWeight); w[0] == w[0] {
			t.Errorf("backward after %d: a partial sum was written", left)
		}
	}
}

// Cached weights are rounded and add up to 1 only nearly. Where g meets the same
// large number in every source no logit has a gradient, whatever they add up to.
func TestBlockAttnResRoundedWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(37, 1))
	dev := newDevice(t, 2)
	for _, c := range []struct {
		norm  bool
		scale float64
	}{{true, 1}, {false, 1}, {true, 0x1p400}, {false, 0x1p400}} { // the large one goes the careful path
		norm := c.norm
		p := newDepth(r, tensor.Float32, 3, 20, 6, 9, true, norm, c.scale)
		if c.scale > 1 {
			clear(p.w)
		}
		const large = 1e3
		for _, row := range p.rows {
			for i := 0; i < len(row); i += 9 {
				row[i] = large
			}
		}
		for i := range p.g {
			p.g[i] = float64(1 - min(i%9, 1)) // along axis 0
		}
		clear(p.w[:1])
		x := p.place(t, dense, tensor.Float32)
		x.grads.ProjWeight = laid(t, dense, tensor.Float64, nil, 9)
		if norm {
			x.grads.RMSNormGamma = laid(t, dense, tensor.Float64, nil, 9)
		}
		x.run(t, dev)
		for name, y := range x.results() {
			if perToken(name) {
				continue
			}
			for _, v := range values(t, y) {
				if !(math.Abs(v) <= 60*7*large*1e-14*large*c.scale) {
					t.Errorf("%+v: %s has %v, want next to nothing", c, name, v)
				}
			}
		}
	}
}

// The partial sums over tokens are at most maxChunks, however many tokens.
func TestBlockAttnResMemory(t *testing.T) {
	for tokens := range 1000 {
		r := attnRes{tokens: tokens}
		count, length := r.chunks()
		if count > maxChunks || count*length < tokens || count > 0 && (count-1)*length >= tokens {
			t.Fatalf("%d tokens: %d chunks of %d", tokens, count, length)
		}
	}
	dev := newDevice(t, 2)
	for _, steps := range []int{1, 100, 3000} {
		p := newDepth(rand.New(rand.NewPCG(38, 1)), tensor.BFloat16, 1, steps, 3, 65, true, true, 1)
		p.place(t, dense, tensor.Float32).run(t, dev)
		if inUse, peak, _ := dev.Memory(); inUse != 0 || peak > sizeClass(maxChunks*65*8) {
			t.Errorf("%d tokens: %d bytes in use, at most %d", steps, inUse, peak)
		}
	}
}

// A call's garbage does not grow with the tokens, whatever the rows hold.
func TestBlockAttnResAllocations(t *testing.T) {
	dev := newDevice(t, 2)
	for _, size := range []float64{1, 1e200} {
		count := func(steps int) float64 {
			p := newDepth(rand.New(rand.NewPCG(35, 1)), tensor.Float64, 1, steps, 3, 33, true, true, 1)
			for _, row := range p.rows {
				for i := range row {
					row[i] *= size
				}
			}
			x := p.place(t, dense, tensor.Float64)
			return testing.AllocsPerRun(10, func() { x.run(t, dev) })
		}
		if few, many := count(64), count(2048); many > few+20 {
			t.Errorf("rows of size %v: %v allocations for 64 tokens, %v for 2048", size, few, many)
		}
	}
}

// The operator at (B,T,N,D) = (2,4096,25,512) with a partial block.
func BenchmarkBlockAttnRes(b *testing.B) {
	const batch, steps, n, d = 2, 4096, 25, 512
	dev := newDevice(b, 2)
	r := rand.New(rand.NewPCG(36, 1))
	x := newDepth(r, tensor.BFloat16, batch, 1, n, d, true, true, 1).place(b, dense, tensor.Float32)
	row := func() *tensor.Tensor {
		data := make([]byte, batch*steps*d*2)
		bits := elems[uint16](data)
		for i := range bits {
			bits[i] = uint16(r.Uint32())&0x80ff | 0x3f00 // 0.5 to 2 in size
		}
		return must[*tensor.Tensor](b)(tensor.New(tensor.WrapHost(data), tensor.BFloat16, batch, steps, d))
	}
	for i := range x.args.Blocks {
		x.args.Blocks[i], x.grads.Blocks[i] = row(), row()
	}
	x.args.PartialBlock, x.grads.PartialBlock, x.gradH, x.out.H = row(), row(), row(), row()
	x.out.Alpha, x.out.RMS = laid(b, dense, tensor.Float32, nil, batch, steps, n+1), laid(b, dense, tensor.Float32, nil, batch, steps, n+1, 1)
	b.Run("forward", func(b *testing.B) {
		for b.Loop() {
			ok(b, dev.BlockAttnResForward(bg, x.args, x.out))
		}
	})
	b.Run("forward+backward", func(b *testing.B) {
		for b.Loop() {
			x.run(b, dev)
		}
	})
}
