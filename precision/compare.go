package precision

import (
	"fmt"
	"math"
)

// Options of a comparison.
type Options struct {
	// Compatible computes what the published test does; see the package comment.
	Compatible bool
}

// Comparison takes the three chains' numbers of one output, all at once or in
// slices. The zero value is not ready; see NewComparison.
type Comparison struct {
	name       string
	format     Format
	o          Options
	n          int // elements seen
	large      int
	kernel     chain
	bench      chain
	ulps       Histogram
	nonFinite  NonFinite
	worst      Worst
	worstSmall Worst
}

// chain is what is gathered of a chain against the golden.
type chain struct {
	mare, sumRE, sumSquares float64
	small                   int // small values beyond their error
}

func (c *chain) large(re, diff float64, compatible bool) {
	if re > c.mare || re != re && compatible {
		c.mare = re
	}
	c.sumRE += re
	c.sumSquares += diff * diff
}

// Histogram counts elements by their distance from the rounded golden.
type Histogram struct {
	Zero int `json:"0"` // the rounded golden itself
	One  int `json:"1"` // its neighbour, up to one unit in the last place away
	Two  int `json:"2"`
	More int `json:"more"`
}

// All is the number of elements counted.
func (h Histogram) All() int { return h.Zero + h.One + h.Two + h.More }

// Add is the sum of two histograms.
func (h Histogram) Add(g Histogram) Histogram {
	return Histogram{h.Zero + g.Zero, h.One + g.One, h.Two + g.Two, h.More + g.More}
}

// NonFinite counts elements of which some chain's number is not finite.
type NonFinite struct {
	Right int `json:"right"` // the class of the benchmark, or of a golden that is not finite
	Wrong int `json:"wrong"` // the golden is not finite, the benchmark agrees and the kernel does not
	Lost  int `json:"lost"`  // the golden and the benchmark are finite, the kernel is not: for a look, and a failure until someone has looked
	Look  int `json:"look"`  // neither: the kernel is finite or the benchmark is as far off, for a look
	First int `json:"first"` // index of the first element that is not right; -1 if there is none
}

// Worst is an element, and what the three chains have there.
type Worst struct {
	Index     int     // -1 if there is none
	Kernel    float64 // what the kernel gave
	Benchmark float64
	Golden    float64
	Error     float64 // relative, or absolute for a small value
}

// String is the three values and where.
func (w Worst) String() string {
	if w.Index < 0 {
		return "none"
	}
	return fmt.Sprintf("[%d] kernel %v, benchmark %v, golden %v, error %.3g", w.Index, w.Kernel, w.Benchmark, w.Golden, w.Error)
}

// NewComparison starts the comparison of one output that is stored in a format.
func NewComparison(name string, f Format, o Options) *Comparison {
	if o.Compatible { // everything is widened to float32 before it is looked at
		f = FP32
	}
	return &Comparison{name: name, format: f, o: o, nonFinite: NonFinite{First: -1}, worst: Worst{Index: -1}, worstSmall: Worst{Index: -1}}
}

// Add takes the next elements of the three chains, which must be equally many:
// if not, nothing is taken and the error wraps tensor.ErrValue.
func (c *Comparison) Add(kernel, benchmark, golden []float64) error {
	if c == nil {
		return argError("comparison", "nil", "one that NewComparison made")
	}
	if len(kernel) != len(golden) || len(benchmark) != len(golden) {
		return argError(c.name, fmt.Sprintf("%d elements of the kernel, %d of the benchmark, %d golden", len(kernel), len(benchmark), len(golden)), "equally many")
	}
	for i, g := range golden {
		if c.o.Compatible {
			c.addCompatible(c.n+i, kernel[i], benchmark[i], g)
		} else {
			c.add(c.n+i, kernel[i], benchmark[i], g)
		}
	}
	c.n += len(golden)
	return nil
}

func (c *Comparison) add(i int, k, b, g float64) {
	if !finite(k) || !finite(b) || !finite(g) {
		c.nonFinite.add(i, k, b, g)
		return
	}
	c.ulps.add(c.format, k, g)
	dk, db := math.Abs(k-g), math.Abs(b-g)
	if math.Abs(g) < c.format.SmallValue {
		if dk > c.format.SmallError {
			c.kernel.small++
		}
		if db > c.format.SmallError {
			c.bench.small++
		}
		c.worstSmall.offer(i, k, b, g, dk)
		return
	}
	c.large++
	scale := math.Abs(g) + 1e-7
	c.kernel.large(dk/scale, dk, false)
	c.bench.large(db/scale, db, false)
	c.worst.offer(i, k, b, g, dk/scale)
}

// addCompatible does in float32 what the published test does there.
func (c *Comparison) addCompatible(i int, kernel, benchmark, golden float64) {
	k, b, g := float32(kernel), float32(benchmark), float32(golden)
	abs := float32(math.Abs(float64(g)))
	dk, db := float32(math.Abs(float64(k-g))), float32(math.Abs(float64(b-g)))
	switch {
	case abs >= float32(c.format.SmallValue):
		c.large++
		scale := abs + 1e-7
		c.kernel.large(float64(dk/scale), float64(dk), true)
		c.bench.large(float64(db/scale), float64(db), true)
		c.worst.offer(i, float64(k), float64(b), float64(g), float64(dk/scale))
	case abs < float32(c.format.SmallValue): // not a NaN
		if dk > float32(c.format.SmallError) {
			c.kernel.small++
		}
		if db > float32(c.format.SmallError) {
			c.bench.small++
		}
		c.worstSmall.offer(i, float64(k), float64(b), float64(g), float64(dk))
	}
}

func finite(x float64) bool { return x-x == 0 }

func (h *Histogram) add(f Format, k, golden float64) {
	want := f.Round(golden)
	if k == want {
		h.Zero++
		return
	}
	switch d := math.Abs(k-want) / f.Ulp(want); {
	case d <= 1:
		h.One++
	case d <= 2:
		h.Two++
	default:
		h.More++
	}
}

// class is 0 for finite, 1 and -1 for the infinities, 2 for NaN.
func class(x float64) int {
	switch {
	case math.IsNaN(x):
		return 2
	case math.IsInf(x, 1):
		return 1
	case math.IsInf(x, -1):
		return -1
	}
	return 0
}

func (n *NonFinite) add(i int, k, b, g float64) {
	switch ck, cb, cg := class(k), class(b), class(g); {
	case ck == cb || cg != 0 && ck == cg:
		n.Right++
		return
	case cg != 0 && cb == cg:
		n.Wrong++
	case cg == 0 && cb == 0:
		n.Lost++
	default:
		n.Look++
	}
	if n.First < 0 {
		n.First = i
	}
}

func (w *Worst) offer(i int, k, b, g, err float64) {
	if w.Index < 0 || err > w.Error || err != err && w.Error == w.Error {
		*w = Worst{i, k, b, g, err}
	}
}

// Metrics are one chain's, over the elements that are not small.
type Metrics struct {
	MARE  float64
	MERE  float64
	RMSE  float64
	Small int // small values beyond their error
}

// Result is the outcome for one output.
type Result struct {
	Output            string
	Format            Format
	Elements          int // in all
	Large             int // finite, and not small
	Kernel, Benchmark Metrics
	Ratios            Ratios
	NonFinite         NonFinite
	Ulps              Histogram // of finite elements
	Worst             Worst     // by relative error
	WorstSmall        Worst     // by absolute error, of the small values
}

// Result is what the elements so far amount to.
func (c *Comparison) Result() Result {
	if c == nil {
		return Result{}
	}
	r := Result{Output: c.name, Format: c.format, Elements: c.n, Large: c.large, NonFinite: c.nonFinite, Ulps: c.ulps, Worst: c.worst, WorstSmall: c.worstSmall,
		Kernel: c.kernel.metrics(c.large), Benchmark: c.bench.metrics(c.large)}
	ratio := c.format.ratio
	if c.o.Compatible {
		ratio = c.format.compatibleRatio
		r.Kernel, r.Benchmark = r.Kernel.rounded(), r.Benchmark.rounded()
	}
	r.Ratios = Ratios{ratio(r.Kernel.MARE, r.Benchmark.MARE), ratio(r.Kernel.MERE, r.Benchmark.MERE), ratio(r.Kernel.RMSE, r.Benchmark.RMSE),
		float64(r.Kernel.Small) / math.Max(float64(r.Benchmark.Small), 1)}
	return r
}

func (c chain) metrics(large int) Metrics {
	if large == 0 {
		return Metrics{Small: c.small}
	}
	n := float64(large)
	return Metrics{c.mare, c.sumRE / n, math.Sqrt(c.sumSquares / n), c.small}
}

// rounded is what float32 holds of the metrics.
func (m Metrics) rounded() Metrics {
	f := func(x float64) float64 { return float64(float32(x)) }
	return Metrics{f(m.MARE), f(m.MERE), f(m.RMSE), m.Small}
}

func (f Format) ratio(kernel, benchmark float64) float64 {
	return kernel / math.Max(benchmark, f.SmallValue)
}

// compatibleRatio passes anything beside a benchmark that is not finite.
func (f Format) compatibleRatio(kernel, benchmark float64) float64 {
	switch {
	case !finite(benchmark):
		return 1
	case !finite(kernel):
		return 1000
	}
	return f.ratio(kernel, benchmark)
}

// Passed reports whether the ratios are within a level's limits and no element
// that is not finite is wrong or lost.
func (r Result) Passed(l Level) bool {
	return r.Ratios.Within(l.Limit) && r.NonFinite.Wrong == 0 && r.NonFinite.Lost == 0
}

// Failure says what is wrong with a result that did not pass: output, worst
// index and the three values there. It is empty for one that did.
func (r Result) Failure(l Level) string {
	if r.Passed(l) {
		return ""
	}
	s := r.Output + ":"
	for _, x := range []struct {
		name        string
		ratio, most float64
		worst       Worst
	}{{"MARE", r.Ratios.MARE, l.Limit.MARE, r.Worst}, {"MERE", r.Ratios.MERE, l.Limit.MERE, r.Worst}, {"RMSE", r.Ratios.RMSE, l.Limit.RMSE, r.Worst}, {"small values", r.Ratios.Small, l.Limit.Small, r.WorstSmall}} {
		if !(x.ratio <= x.most) {
			s += fmt.Sprintf(" %s ratio %.4g over %g, worst %v;", x.name, x.ratio, x.most, x.worst)
		}
	}
	if n := r.NonFinite.Wrong + r.NonFinite.Lost; n > 0 {
		s += fmt.Sprintf(" %d elements not finite where they should be otherwise, or finite where they should not, the first at %d;", n, r.NonFinite.First)
	}
	return s[:len(s)-1]
}
