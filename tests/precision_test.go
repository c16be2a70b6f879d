package tests

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops/blockattnres"
	"github.com/lamina-go/lamina/tensor"
)

// The tests that decide about the operator: random configurations against the
// definition written out in float64 below, which shares nothing with the engine.

var seedFlag = flag.Int("seed", -1, "run this one of the random configurations, and no other")

var configDTypes = []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32, tensor.Float64}

// config is one call of the operator with its numbers, which its dtype holds exactly.
type config struct {
	seed          int
	dtype         tensor.DType
	b, t, n, d    int
	partial, norm bool
	scale, eps    float64
	rows          [][]float64 // L of (B,T,D)
	gradH         []float64
	w, gamma      []float64
	about         string // what is special
}

func (c *config) String() string {
	return fmt.Sprintf("seed %d: %v B=%d T=%d N=%d D=%d partial=%v norm=%v scale=%v eps=%v%s", c.seed, c.dtype, c.b, c.t, c.n, c.d, c.partial, c.norm, c.scale, c.eps, c.about)
}

// reproduce is the command that runs one configuration again.
func (c *config) reproduce(test string) string {
	return fmt.Sprintf("go test ./tests -run '^%s$' -args -seed %d", test, c.seed)
}

// newConfig draws a configuration: every fifth is of a large D, every sixteenth
// has rows of 1e-5 to 1e3 mixed, outliers, large logits or a number that is not finite.
func newConfig(seed int) *config {
	r := rand.New(rand.NewPCG(uint64(seed), 4))
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	c := &config{seed: seed, dtype: configDTypes[seed%4], b: 1 + r.IntN(3), t: 1 + r.IntN(4), n: 1 + r.IntN(8), d: 1 + r.IntN(129),
		partial: r.IntN(2) == 0, norm: r.IntN(4) != 0, scale: []float64{1, 1, -0.7, 3, 0}[r.IntN(5)], eps: []float64{1e-6, 1e-6, 0, 0.01}[r.IntN(4)]}
	switch r.IntN(40) {
	case 0, 1:
		c.d, c.b, c.t, c.n = pick(255, 256, 511, 512, 513, 1024), 1, 1+r.IntN(2), 1+r.IntN(6)
	case 2:
		c.d, c.b, c.t, c.n = pick(1536, 2048, 2560, 4096, 5120, 6144, 6145), 1, 1, 1+r.IntN(3)
	case 3, 4:
		c.b, c.t, c.n, c.d = 1, 1+r.IntN(2), 9+r.IntN(119), 1+r.IntN(33)
	}
	l := c.n
	if c.partial {
		l++
	}
	factor := 1.0
	size := func() float64 { return factor }
	outliers := false
	logits := 1 / math.Sqrt(float64(4*c.d))
	switch r.IntN(8) {
	case 0:
		size = func() float64 { return math.Pow(10, -5+8*r.Float64()) }
		c.about = " rows 1e-5..1e3"
	case 1:
		factor = math.Pow(10, -5+8*r.Float64())
		c.about = fmt.Sprintf(" rows %.2g", factor)
	case 2:
		outliers = true
		c.about = " outliers"
	case 3:
		logits *= math.Pow(10, 1+3*r.Float64())
		c.about = " large logits"
	}
	most := 60000.0 // finite in float16
	round := func(x float64) float64 { return tensor.Round(c.dtype, max(-most, min(most, x))) }
	fill := func(n int, scale float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = scale * r.NormFloat64()
			if outliers && r.IntN(1000) == 0 {
				v[i] *= 1000
			}
			v[i] = round(v[i])
		}
		return v
	}
	for range l {
		row := make([]float64, 0, c.b*c.t*c.d)
		for range c.b * c.t {
			row = append(row, fill(c.d, size())...)
		}
		c.rows = append(c.rows, row)
	}
	c.gradH = fill(c.b*c.t*c.d, 1)
	c.w = fill(c.d, logits)
	if c.norm {
		c.gamma = fill(c.d, 1)
		if r.IntN(8) == 0 {
			for i := range c.gamma {
				c.gamma[i] = 1
			}
		}
	}
	if r.IntN(16) == 0 { // one number of one token
		x := []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(3)]
		to := c.gradH
		if k := r.IntN(l + 1); k < l {
			to = c.rows[k]
		}
		to[r.IntN(len(to))] = x
		c.about += fmt.Sprintf(" with %v", x)
	}
	return c
}

// expected is a result by the definition and, beside each number, the sum of the
// magnitudes that it is made of: what its rounding errors are relative to.
type expected struct{ x, size []float64 }

func newExpected(n int) *expected { return &expected{make([]float64, n), make([]float64, n)} }

func (e *expected) add(i int, x, size float64) {
	e.x[i] += x
	e.size[i] += size
}

// definition is the operator and its gradients, by name, token by token, and
// how much the logits' own rounding may change a weight, relatively.
//
//	k_l = v_l / rms_l * gamma,  alpha = softmax_l(scale w.k_l),  h = sum_l alpha_l v_l
func (c *config) definition() (of map[string]*expected, noise float64) {
	l, d, tokens := len(c.rows), c.d, c.b*c.t
	of = map[string]*expected{"output": newExpected(tokens * d), "alpha_cache": newExpected(tokens * l), "grad_proj_weight": newExpected(d)}
	if c.norm {
		of["rms_cache"], of["grad_rmsnorm_gamma"] = newExpected(tokens*l), newExpected(d)
	}
	grads := make([]*expected, l)
	for i := range grads {
		grads[i] = newExpected(tokens * d)
		of[c.source(i)] = grads[i]
	}
	rms, logit, logitSize := make([]float64, l), make([]float64, l), make([]float64, l)
	alpha, da, daSize := make([]float64, l), make([]float64, l), make([]float64, l)
	u := append([]float64{}, c.w...)
	for i, g := range c.gamma {
		u[i] *= g
	}
	least := 0x1p-126 // a cached weight below it is rounded to a multiple of 2^-149
	if c.dtype == tensor.Float64 {
		least = 0x1p-1022
	}
	for k := range tokens {
		at := k * d
		top := math.Inf(-1)
		for i, row := range c.rows {
			v := row[at : at+d]
			rms[i] = 1
			if c.norm {
				var ss float64
				for _, x := range v {
					ss += x * x
				}
				rms[i] = math.Sqrt(ss/float64(d) + c.eps)
				of["rms_cache"].add(k*l+i, rms[i], rms[i])
			}
			logit[i], logitSize[i] = 0, 0
			for j, x := range v {
				logit[i] += u[j] * x
				logitSize[i] += math.Abs(u[j] * x)
			}
			logit[i] *= c.scale / rms[i]
			logitSize[i] *= math.Abs(c.scale) / rms[i]
			if logitSize[i] > noise { // not a NaN
				noise = logitSize[i]
			}
			top = math.Max(top, logit[i])
		}
		var total, mean, meanSize float64
		for i := range alpha {
			alpha[i] = math.Exp(logit[i] - top)
			total += alpha[i]
		}
		for i, row := range c.rows {
			alpha[i] /= total
			of["alpha_cache"].add(k*l+i, alpha[i], alpha[i])
			da[i], daSize[i] = 0, 0
			for j, x := range row[at : at+d] {
				of["output"].add(at+j, alpha[i]*x, alpha[i]*math.Abs(x))
				p := x * c.gradH[at+j]
				da[i] += p
				daSize[i] += math.Abs(p)
			}
			mean += alpha[i] * da[i]
			meanSize += alpha[i] * daSize[i]
		}
		for i, row := range c.rows {
			rough := max(alpha[i], least)
			ds, dsSize := alpha[i]*(da[i]-mean), rough*(daSize[i]+meanSize)
			for j, x := range row[at : at+d] {
				g := c.gradH[at+j]
				along := c.scale * u[j] / rms[i]
				dv, size := alpha[i]*g+ds*along, rough*math.Abs(g)+dsSize*math.Abs(along)
				unit := x / rms[i]
				gain := 1.0
				if c.norm {
					dv -= ds * unit * logit[i] / (float64(d) * rms[i])
					size += dsSize * math.Abs(unit) * logitSize[i] / (float64(d) * rms[i])
					p := c.scale * c.w[j] * unit
					of["grad_rmsnorm_gamma"].add(j, ds*p, dsSize*math.Abs(p))
					gain = c.gamma[j]
				}
				grads[i].add(at+j, dv, size)
				p := c.scale * gain * unit
				of["grad_proj_weight"].add(j, ds*p, dsSize*math.Abs(p))
			}
		}
	}
	return of, 0x1p-52 * (4 + math.Sqrt(float64(d))) * noise
}

// source is the name of a source's gradient.
func (c *config) source(i int) string {
	if i == c.n {
		return "grad_partial_block"
	}
	return fmt.Sprintf("grad_blocks[%d]", i)
}

// operands are the tensors of the configuration, with the tokens in an order;
// nil: as they are.
func (c *config) operands(order []int, shape ...int) (in blockattnres.Tensors, gradH *tensor.Tensor, err error) {
	make := func(v []float64, shape ...int) *tensor.Tensor {
		if v == nil || err != nil {
			return nil
		}
		var x *tensor.Tensor
		x, err = tensor.FromFloat64s(c.dtype, v, shape...)
		return x
	}
	ordered := func(v []float64) []float64 {
		if order == nil {
			return v
		}
		var out []float64
		for _, k := range order {
			out = append(out, v[k*c.d:(k+1)*c.d]...)
		}
		return out
	}
	for i, row := range c.rows {
		if i == c.n {
			in.PartialBlock = make(ordered(row), shape...)
		} else {
			in.Blocks = append(in.Blocks, make(ordered(row), shape...))
		}
	}
	in.ProjWeight, in.RMSNormGamma = make(c.w, c.d), make(c.gamma, c.d)
	return in, make(ordered(c.gradH), shape...), err
}

func (c *config) options() []blockattnres.Option {
	o := []blockattnres.Option{blockattnres.Scale(c.scale), blockattnres.Eps(c.eps)}
	if !c.norm {
		o = append(o, blockattnres.WithoutRMSNorm())
	}
	return o
}

// kernel is every result of the fused forward and backward by name.
func (c *config) kernel(dev *cpu.Device, in blockattnres.Tensors, gradH *tensor.Tensor) (map[string]*tensor.Tensor, error) {
	s := device.NewStream(context.Background(), dev)
	out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: c.norm, Alpha: true}, c.options()...)
	if err != nil {
		return nil, err
	}
	g, err := blockattnres.Backward(s, gradH, in, out.Alpha, out.RMS, c.options()...)
	if err != nil {
		return nil, err
	}
	of := map[string]*tensor.Tensor{"output": out.H, "alpha_cache": out.Alpha, "grad_proj_weight": g.ProjWeight}
	if c.norm {
		of["rms_cache"], of["grad_rmsnorm_gamma"] = out.RMS, g.RMSNormGamma
	}
	for i, x := range g.Blocks {
		of[c.source(i)] = x
	}
	if c.partial {
		of["grad_partial_block"] = g.PartialBlock
	}
	for name, x := range of {
		if of[name], err = s.Download(x); err != nil {
			return nil, err
		}
	}
	s.Release()
	return of, nil
}

// tally counts 16-bit numbers of well-conditioned sums, and those of them that
// are the rounded float64 answer.
type tally struct{ exact, all atomic.Int64 }

// judge compares every number of every result with the definition.
func (c *config) judge(got map[string]*tensor.Tensor, n *tally) error {
	want, noise := c.definition()
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for name, w := range want {
		x := got[name]
		if x == nil {
			return fmt.Errorf("%s is missing", name)
		}
		v, err := x.Float64s()
		if err != nil {
			return err
		}
		if len(v) != len(w.x) {
			return fmt.Errorf("%s has %d elements, want %d", name, len(v), len(w.x))
		}
		relative := 0x1p-52*8*math.Sqrt(float64(c.d+len(c.rows))) + noise
		forward := name == "output" || name == "alpha_cache" || name == "rms_cache"
		if !forward && c.dtype != tensor.Float64 {
			relative += 3 * 0x1p-24 // the caches are float32
		}
		if c.dtype.IsHalf() {
			if x.DType() == tensor.Float32 {
				continue // a cache, for which bar has limits: what is computed in float32 is not its rounding to the bit
			}
			relative += 0x1p-20 // 16-bit rows are summed in float32: a few of its roundings, far below those of the result
		}
		for i, g := range w.x {
			if err := within(x.DType(), v[i], g, relative*w.size[i]); err != nil {
				return fmt.Errorf("%s element %d: %w", name, i, err)
			}
			if x.DType().IsHalf() && w.size[i] <= 4*math.Abs(g) && noise < 1e-9 && g-g == 0 {
				n.all.Add(1)
				// Weights of 1/3 put answers half-way between two numbers, where the
				// definition's own rounding error in float64 would decide.
				own := 0x1p-50 * w.size[i]
				if v[i] == tensor.Round(x.DType(), g-own) || v[i] == tensor.Round(x.DType(), g+own) {
					n.exact.Add(1)
				}
			}
		}
	}
	return c.bar(got, want)
}

// bar is the part of the project's bar that judges a result as a whole.
func (c *config) bar(got map[string]*tensor.Tensor, want map[string]*expected) error {
	for name, limit := range map[string]float64{"rms_cache": 2e-7, "alpha_cache": 4e-6} {
		if got[name] == nil {
			continue
		}
		v, err := got[name].Float64s()
		if err != nil {
			return err
		}
		for i, w := range want[name].x {
			most := limit
			if name == "rms_cache" {
				most *= w
			}
			if w-w == 0 && !(math.Abs(v[i]-w) <= most) {
				return fmt.Errorf("%s element %d is %v, want %v", name, i, v[i], w)
			}
		}
	}
	if c.dtype != tensor.Float32 {
		return nil
	}
	v, err := got["output"].Float64s()
	if err != nil {
		return err
	}
	for k := 0; k < len(v); k += c.d {
		var diff, norm float64
		for i, w := range want["output"].x[k : k+c.d] {
			diff += (v[k+i] - w) * (v[k+i] - w)
			norm += w * w
		}
		if diff-diff == 0 && !(math.Sqrt(diff) <= 2e-4*math.Sqrt(norm)) {
			return fmt.Errorf("row %d of the output is off by %v, its norm is %v", k/c.d, math.Sqrt(diff), math.Sqrt(norm))
		}
	}
	return nil
}

// within reports whether a number of a dtype is within a unit in its last place
// of the rounded golden, beside what rounding errors may add; one that is not
// finite must be of the golden's class.
func within(d tensor.DType, got, golden, slack float64) error {
	want := tensor.Round(d, golden)
	switch {
	case got == want || math.IsNaN(got) && math.IsNaN(want):
		return nil
	case golden-golden == 0 && (got-got != 0 || want-want != 0): // over the edge of the format
		edge := math.Abs(golden) + slack
		if !math.IsNaN(got) && tensor.Round(d, edge)-tensor.Round(d, edge) != 0 && math.Signbit(got) == math.Signbit(golden) {
			return nil
		}
	case golden-golden == 0 && math.Abs(got-want) <= ulp(d, want)+slack:
		return nil
	}
	return fmt.Errorf("%v, want %v (%v), give or take %.3g", got, want, golden, slack)
}

// identities of a float64 configuration: sum alpha = 1, sum_l dlogit_l = 0, and
// w.dw = gamma.dgamma = scale dL/dscale. The derivatives of the logits are found
// from the rows' gradients.
func (c *config) identities(got map[string]*tensor.Tensor) error {
	v := map[string][]float64{}
	for name, x := range got {
		var err error
		if v[name], err = x.Float64s(); err != nil {
			return err
		}
	}
	const tiny = 1e-300 // where numbers are about to be subnormal
	l, d := len(c.rows), c.d
	u := append([]float64{}, c.w...)
	for i, g := range c.gamma {
		u[i] *= g
	}
	norm2 := inner(u, u)
	var byScale, size float64
	known := true // all derivatives of logits
	for k := range c.b * c.t {
		var sum, slopes, slopesSize float64
		for i, row := range c.rows {
			alpha := v["alpha_cache"][k*l+i]
			sum += alpha
			x, dx, g := row[k*d:(k+1)*d], v[c.source(i)][k*d:(k+1)*d], c.gradH[k*d:(k+1)*d]
			rms, along := 1.0, norm2
			key := inner(u, x)
			if c.norm {
				rms = v["rms_cache"][k*l+i]
				key /= rms
				along -= key * key / float64(d)
			}
			if c.scale == 0 || !(along > 0.1*norm2) {
				known = false
				continue
			}
			// dv = alpha g + ds scale (u - v key/(D rms))/rms, and its product with u
			ds := (inner(u, dx) - alpha*inner(u, g)) * rms / (c.scale * along)
			slopes += ds
			made := sizeOf(u, dx) + alpha*sizeOf(u, g)
			made = made*rms/math.Abs(c.scale*along) + alpha*sizeOf(x, g)
			slopesSize += made
			byScale += ds * c.scale * key
			size += made * math.Abs(c.scale) * sizeOf(u, x) / rms
		}
		if math.Abs(sum-1) > 1e-15*float64(l+2) {
			return fmt.Errorf("token %d: weights add up to %v", k, sum)
		}
		if known && math.Abs(slopes) > 1e-14*slopesSize*math.Sqrt(float64(d))+tiny {
			return fmt.Errorf("token %d: the derivatives of the logits add up to %v of %v", k, slopes, slopesSize)
		}
	}
	a, aSize := inner(c.w, v["grad_proj_weight"]), sizeOf(c.w, v["grad_proj_weight"])
	if c.norm {
		if b := inner(c.gamma, v["grad_rmsnorm_gamma"]); math.Abs(a-b) > 1e-14*math.Sqrt(float64(d))*(aSize+sizeOf(c.gamma, v["grad_rmsnorm_gamma"]))+tiny {
			return fmt.Errorf("w.dw is %v, gamma.dgamma %v", a, b)
		}
	}
	if known && math.Abs(a-byScale) > 1e-14*(aSize+size)*math.Sqrt(float64(d))+tiny {
		return fmt.Errorf("w.dw is %v, scale dL/dscale %v", a, byScale)
	}
	return nil
}

func inner(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func sizeOf(a, b []float64) (sum float64) {
	for i := range a {
		sum += math.Abs(a[i] * b[i])
	}
	return sum
}

// invariant holds the results of the same tokens in another order, shape and
// number of threads against got, bit for bit.
func (c *config) invariant(got map[string]*tensor.Tensor, other *cpu.Device) error {
	tokens := c.b * c.t
	order := rand.New(rand.NewPCG(uint64(c.seed), 5)).Perm(tokens)
	in, gradH, err := c.operands(order, tokens, 1, c.d)
	if err != nil {
		return err
	}
	moved, err := c.kernel(other, in, gradH)
	if err != nil {
		return err
	}
	for name, x := range got {
		if name == "grad_proj_weight" || name == "grad_rmsnorm_gamma" {
			continue // sums over the tokens
		}
		a, err := x.Bits()
		if err != nil {
			return err
		}
		b, err := moved[name].Bits()
		if err != nil {
			return err
		}
		per := len(a) / tokens
		for to, from := range order {
			for i := range per {
				if a[from*per+i] != b[to*per+i] {
					return fmt.Errorf("%s of token %d depends on where the token is", name, from)
				}
			}
		}
	}
	return nil
}

// applied holds h and the gradients of the recorded op against got, bit for bit.
func (c *config) applied(got map[string]*tensor.Tensor, dev *cpu.Device, in blockattnres.Tensors, gradH *tensor.Tensor) error {
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	vars := blockattnres.Inputs{ProjWeight: tape.Watch(in.ProjWeight)}
	leaves := map[string]*tensor.Tensor{"grad_proj_weight": in.ProjWeight}
	for i, x := range in.Blocks {
		vars.Blocks = append(vars.Blocks, tape.Watch(x))
		leaves[c.source(i)] = x
	}
	if c.partial {
		vars.PartialBlock = tape.Watch(in.PartialBlock)
		leaves["grad_partial_block"] = in.PartialBlock
	}
	if c.norm {
		vars.RMSNormGamma = tape.Watch(in.RMSNormGamma)
		leaves["grad_rmsnorm_gamma"] = in.RMSNormGamma
	}
	h := blockattnres.Apply(vars, c.options()...).Keep()
	g, err := tape.BackwardFrom(h, gradH)
	if err != nil {
		return err
	}
	results := map[string]*tensor.Tensor{"output": h.Tensor()}
	for name, x := range leaves {
		results[name] = g.Of(x)
	}
	for name, x := range results {
		a, err := x.Bits()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b, err := got[name].Bits()
		if err != nil {
			return err
		}
		for i := range b {
			if a[i] != b[i] {
				return fmt.Errorf("%s element %d of Apply is not that of Forward and Backward", name, i)
			}
		}
	}
	return nil
}

// check runs everything on one configuration.
func (c *config) check(dev, other *cpu.Device, n *tally) error {
	in, gradH, err := c.operands(nil, c.b, c.t, c.d)
	if err != nil {
		return err
	}
	got, err := c.kernel(dev, in, gradH)
	if err != nil {
		return err
	}
	if err := c.judge(got, n); err != nil {
		return err
	}
	if finite := got["output"]; c.dtype == tensor.Float64 && bothFinite(finite, c.gradH) {
		if err := c.identities(got); err != nil {
			return err
		}
	}
	switch c.seed / 4 % 8 {
	case 0, 1:
		return c.invariant(got, other)
	case 2:
		return c.applied(got, dev, in, gradH)
	}
	return nil
}

func bothFinite(x *tensor.Tensor, more []float64) bool {
	v, err := x.Float64s()
	for _, x := range append(v, more...) {
		if x-x != 0 {
			return false
		}
	}
	return err == nil
}

// eachConfig runs check on count configurations, on all processors.
func eachConfig(t *testing.T, count int, draw func(seed int) *config) *tally {
	t.Helper()
	n := &tally{}
	seeds := make(chan int)
	var wg sync.WaitGroup
	var failures atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			one, three := cpu.New(cpu.Threads(1)), cpu.New(cpu.Threads(3))
			defer one.Close()
			defer three.Close()
			for seed := range seeds {
				c := draw(seed)
				if err := c.check(one, three, n); err != nil && failures.Add(1) <= 5 {
					t.Errorf("%v: %v\n%s", c, err, c.reproduce(t.Name()))
				}
			}
		})
	}
	if *seedFlag >= 0 {
		seeds <- *seedFlag
		count = 0
	}
	for seed := range count {
		if failures.Load() > 0 && testing.Short() {
			break
		}
		seeds <- seed
	}
	close(seeds)
	wg.Wait()
	if f := failures.Load(); f > 0 {
		t.Errorf("%d configurations failed", f)
	}
	return n
}

// configurations is how many random ones a run has.
func configurations() int {
	if testing.Short() {
		return 600
	}
	return 32000
}

func TestRandomConfigurations(t *testing.T) {
	n := eachConfig(t, configurations(), newConfig)
	exact, all := n.exact.Load(), n.all.Load()
	t.Logf("%d of %d well-conditioned 16-bit numbers are the rounded float64 answer: %.4f %%", exact, all, 100*float64(exact)/float64(all))
	if *seedFlag < 0 && float64(exact) < 0.999*float64(all) {
		t.Errorf("that is less than 99.9 %%")
	}
}

// newDyadic draws a configuration whose every intermediate result float64 holds:
// D and L are powers of two, a row is one size times one pattern of signs, so
// that logits are equal and the weights 1/L; or one logit is far above the rest.
func newDyadic(seed int) *config {
	r := rand.New(rand.NewPCG(uint64(seed), 6))
	c := &config{seed: seed, dtype: configDTypes[seed%4], b: 1 + r.IntN(2), t: 1 + r.IntN(3), d: 1 << r.IntN(8), partial: r.IntN(2) == 0, norm: r.IntN(3) != 0, scale: []float64{1, -0.5, 2, 0}[r.IntN(4)], about: " dyadic"}
	l := 1 << r.IntN(6)
	c.n = l
	if c.partial {
		l, c.n = max(l, 2), max(l, 2)-1
	}
	small := func(n, most int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(r.IntN(2*most+1) - most)
		}
		return v
	}
	c.gradH, c.w = small(c.b*c.t*c.d, 3), small(c.d, 2)
	if c.norm {
		c.gamma = small(c.d, 2)
	}
	c.rows = make([][]float64, l)
	winner := -1
	if r.IntN(4) == 0 { // its logit is 2^14 for D = 1, that of the others 0 or less
		winner = r.IntN(l)
		if c.scale == 0 {
			c.scale = 2
		}
		c.about += fmt.Sprintf(", source %d takes all", winner)
	}
	for range c.b * c.t {
		signs := make([]float64, c.d)
		for j := range signs {
			signs[j] = float64(2*r.IntN(2) - 1)
			if winner >= 0 {
				signs[j] = 1
			}
		}
		for i := range c.rows {
			size := math.Ldexp(1, r.IntN(5)-2)
			if !c.norm { // keys are the rows
				size = 1
			}
			if winner >= 0 && i != winner {
				size = -size
			}
			for _, x := range signs {
				c.rows[i] = append(c.rows[i], size*x)
			}
		}
	}
	if winner >= 0 {
		for j := range c.w {
			c.w[j] = math.Copysign(4096, c.scale)
			if c.norm {
				c.gamma[j] = 1
			}
		}
	}
	return c
}

// The dyadic cases: every result is the rounded answer, to the bit.
func TestDyadicConfigurations(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	count := 4000
	if testing.Short() {
		count = 400
	}
	for seed := range count {
		if *seedFlag >= 0 && seed != *seedFlag {
			continue
		}
		c := newDyadic(seed)
		in, gradH, err := c.operands(nil, c.b, c.t, c.d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.kernel(dev, in, gradH)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := c.definition()
		for name, x := range got {
			v, err := x.Float64s()
			if err != nil {
				t.Fatal(err)
			}
			for i, g := range want[name].x {
				if w := tensor.Round(x.DType(), g); v[i] != w {
					t.Fatalf("%v: %s element %d is %v, want %v\n%s", c, name, i, v[i], w, c.reproduce(t.Name()))
				}
			}
		}
	}
}

// The accumulator killer: 64 blocks of +1 and 64 of -1, no query, gradients of
// 1/2, and each column of dw is B*T*L/16 = 262144 exactly.
func TestAccumulatorKiller(t *testing.T) {
	for _, d := range configDTypes {
		dev := cpu.New()
		defer dev.Close()
		b, steps := 8, 32768
		if testing.Short() {
			steps = 1024
		}
		expanded := func(x float64) *tensor.Tensor { // one row in memory, read by every token
			row, err := tensor.FromFloat64s(d, []float64{x, x}, 1, 1, 2)
			if err == nil {
				row, err = row.Expand(b, steps, 2)
			}
			if err != nil {
				t.Fatal(err)
			}
			return row
		}
		weight := func(x float64) *tensor.Tensor {
			w, err := tensor.FromFloat64s(d, []float64{x, x}, 2)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		in := blockattnres.Tensors{PartialBlock: expanded(-1), ProjWeight: weight(0), RMSNormGamma: weight(1)}
		for i := range 127 {
			in.Blocks = append(in.Blocks, expanded(float64(1-i/64*2)))
		}
		s := device.NewStream(context.Background(), dev)
		out, err := blockattnres.Forward(s, in, blockattnres.Caches{RMS: true, Alpha: true}, blockattnres.Eps(0))
		if err != nil {
			t.Fatal(err)
		}
		// Only the weight's gradient, so that those of the blocks take no memory.
		dw := s.Empty(d, 2)
		a := &device.BlockAttnResArgs{Blocks: in.Blocks, PartialBlock: in.PartialBlock, ProjWeight: in.ProjWeight, RMSNormGamma: in.RMSNormGamma, Scale: 1, RMSNorm: true}
		if err := dev.BlockAttnResBackward(context.Background(), a, out, expanded(0.5), &blockattnres.Grads{ProjWeight: dw}); err != nil {
			t.Fatal(err)
		}
		got, err := dw.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		want := tensor.Round(d, float64(b*steps)) // 262144; float16 has no such number
		if got[0] != want || got[1] != want {
			t.Errorf("%v: dw is %v, want %v twice", d, got, want)
		}
		s.Release()
	}
}
