package precision

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// Table writes a line for each result: ratios, small-value counts of kernel and
// benchmark, the histogram of units in the last place, and PASS or FAILED. An
// error is w's, or wraps tensor.ErrValue if w is nil.
func Table(w io.Writer, l Level, results ...Result) error {
	if w == nil {
		return argError("writer", "nil", "one")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "output\telements\tMARE\tratio\tMERE\tratio\tRMSE\tratio\tsmall\tratio\t0 ulp\t1\t2\tmore\t%s\t\n", l.Name)
	for _, r := range results {
		verdict := "PASS"
		if !r.Passed(l) {
			verdict = "FAILED"
		}
		fmt.Fprintf(t, "%s\t%d\t%.2e\t%.4f\t%.2e\t%.4f\t%.2e\t%.4f\t%d/%d\t%.3f\t%d\t%d\t%d\t%d\t%s\t\n", r.Output, r.Elements,
			r.Kernel.MARE, r.Ratios.MARE, r.Kernel.MERE, r.Ratios.MERE, r.Kernel.RMSE, r.Ratios.RMSE, r.Kernel.Small, r.Benchmark.Small, r.Ratios.Small,
			r.Ulps.Zero, r.Ulps.One, r.Ulps.Two, r.Ulps.More, verdict)
	}
	return t.Flush()
}

// number is a float64 that JSON can hold: NaN and the infinities are strings.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if !finite(f) {
		s := "NaN"
		if math.IsInf(f, 0) {
			s = strconv.FormatFloat(f, 'g', -1, 64) // +Inf or -Inf
		}
		return json.Marshal(s)
	}
	return json.Marshal(f)
}

// MarshalJSON writes numbers that are not finite as "NaN", "+Inf" and "-Inf".
func (w Worst) MarshalJSON() ([]byte, error) {
	if w.Index < 0 {
		return []byte("null"), nil
	}
	return json.Marshal(map[string]any{"index": w.Index, "kernel": number(w.Kernel), "benchmark": number(w.Benchmark), "golden": number(w.Golden), "error": number(w.Error)})
}

// MarshalJSON writes numbers that are not finite as "NaN", "+Inf" and "-Inf".
func (m Metrics) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"mare": number(m.MARE), "mere": number(m.MERE), "rmse": number(m.RMSE), "small": m.Small})
}

// MarshalJSON writes numbers that are not finite as "NaN", "+Inf" and "-Inf".
func (r Ratios) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"mare": number(r.MARE), "mere": number(r.MERE), "rmse": number(r.RMSE), "small": number(r.Small)})
}

// MarshalJSON writes numbers that are not finite as "NaN", "+Inf" and "-Inf".
func (i Interval) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"low": number(i.Low), "median": number(i.Median), "high": number(i.High)})
}

// MarshalJSON names everything in a result, the format by its name.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Output     string    `json:"output"`
		Format     string    `json:"format"`
		Elements   int       `json:"elements"`
		Large      int       `json:"large"`
		Kernel     Metrics   `json:"kernel"`
		Benchmark  Metrics   `json:"benchmark"`
		Ratios     Ratios    `json:"ratios"`
		NonFinite  NonFinite `json:"non_finite"`
		Ulps       Histogram `json:"ulps"`
		Worst      Worst     `json:"worst"`
		WorstSmall Worst     `json:"worst_small"`
	}{r.Output, r.Format.Name, r.Elements, r.Large, r.Kernel, r.Benchmark, r.Ratios, r.NonFinite, r.Ulps, r.Worst, r.WorstSmall})
}

// MarshalJSON names everything in a verdict.
func (v Verdict) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Seeds  int      `json:"seeds"`
		MARE   Interval `json:"mare"`
		MERE   Interval `json:"mere"`
		RMSE   Interval `json:"rmse"`
		Small  Interval `json:"small"`
		Passed bool     `json:"passed"`
	}{v.Seeds, v.MARE, v.MERE, v.RMSE, v.Small, v.Passed})
}
