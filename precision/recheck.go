package precision

import (
	"fmt"
	"math"
	"slices"

	"github.com/lamina-go/lamina/random"
)

// What the standard asks of a re-check.
const (
	MinSeeds         = 200
	RecommendedSeeds = 1000
	Resamples        = 2000
)

// Interval is an estimate with the ends of its 95 % interval.
type Interval struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
}

// Bootstrap is the median of the values and, by drawing as many of them again
// with repetition, resamples times, the 2.5 % and 97.5 % points of its
// distribution. NaN counts as larger than anything. Without values all are NaN,
// and more than 2^20 resamples are not taken.
func Bootstrap(values []float64, resamples int, source random.Source) Interval {
	n := len(values)
	if n == 0 || resamples < 1 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
	}
	resamples = min(resamples, 1<<20)
	sorted := slices.Clone(values)
	for i, x := range sorted {
		if x != x {
			sorted[i] = math.Inf(1)
		}
	}
	slices.Sort(sorted)
	medians := make([]float64, resamples)
	draw := make([]int, n)
	for r := range medians {
		for i := range draw {
			draw[i] = source.Intn(uint64(r)*uint64(n)+uint64(i), n)
		}
		slices.Sort(draw) // of the sorted values, so their order is that of the draw
		medians[r] = middle(sorted[draw[(n-1)/2]], sorted[draw[n/2]])
	}
	slices.Sort(medians)
	at := func(p float64) float64 { return medians[min(int(p*float64(resamples)), resamples-1)] }
	return Interval{at(0.025), middle(sorted[(n-1)/2], sorted[n/2]), at(0.975)}
}

func middle(a, b float64) float64 {
	if a == b {
		return a // also where both are infinite
	}
	return a + (b-a)/2
}

// Verdict is the outcome of a re-check of one output.
type Verdict struct {
	Seeds                   int
	MARE, MERE, RMSE, Small Interval
	Passed                  bool
}

// Recheck judges the ratios of one output under new seeds: it fails if the
// lower end of the 95 % interval of some ratio's median is beyond the limit.
// Fewer than MinSeeds are an error.
func Recheck(ratios []Ratios, l Level, source random.Source) (Verdict, error) {
	if len(ratios) < MinSeeds {
		return Verdict{}, argError("seeds", fmt.Sprint(len(ratios)), fmt.Sprintf("at least %d", MinSeeds))
	}
	interval := func(of func(Ratios) float64) Interval {
		x := make([]float64, len(ratios))
		for i, r := range ratios {
			x[i] = of(r)
		}
		return Bootstrap(x, Resamples, source)
	}
	v := Verdict{
		Seeds: len(ratios),
		MARE:  interval(func(r Ratios) float64 { return r.MARE }),
		MERE:  interval(func(r Ratios) float64 { return r.MERE }),
		RMSE:  interval(func(r Ratios) float64 { return r.RMSE }),
		Small: interval(func(r Ratios) float64 { return r.Small }),
	}
	v.Passed = Ratios{v.MARE.Low, v.MERE.Low, v.RMSE.Low, v.Small.Low}.Within(l.Limit)
	return v, nil
}
