// Precision judges the BlockAttnRes operator by the operator precision standard
// for Ascend: a float64 golden, a benchmark of small operations in the tensors'
// dtype, and the fused kernel, over every output and gradient. Exit status 0 if
// all pass, 1 if one fails, 2 for wrong arguments.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cascade"
	"github.com/lamina-go/lamina/internal/memory"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the flags.
type settings struct {
	cascade.Case
	level    precision.Level
	seeds    int
	device   string
	json     bool
	sweep    bool
	cases    int
	elements int
	quiet    bool // no progress bar
}

var dtypes = map[string]tensor.DType{"bf16": tensor.BFloat16, "fp16": tensor.Float16, "fp32": tensor.Float32, "fp64": tensor.Float64}

func parse(args []string, out io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("precision", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // one sentence for a mistake, the list of flags for -help
	flags.IntVar(&s.B, "b", 2, "batch")
	flags.IntVar(&s.T, "t", 4096, "tokens")
	flags.IntVar(&s.N, "n", 25, "blocks, 1 to 127")
	flags.IntVar(&s.D, "d", 512, "width")
	dtype := flags.String("dtype", "bf16", "bf16, fp16, fp32 or fp64")
	flags.Float64Var(&s.Scale, "scale", 1, "factor of the logits")
	flags.BoolVar(&s.RMSNorm, "rmsnorm", true, "normalised keys")
	flags.BoolVar(&s.Partial, "partial", true, "a partial block besides the blocks")
	gamma := flags.String("gamma", "ones", "gain of the norm: ones, or random and signed")
	level := flags.String("level", "L2", "limits of the ratios: L0 (10, 2, 2), L1 (5, 1.5, 1.5) or L2 (2, 1.2, 1.2)")
	inputs := flags.String("inputs", "normal", "distributions: normal as in the published test, or level as the standard asks for the level")
	flags.Uint64Var(&s.Seed, "seed", 42, "of the inputs")
	flags.IntVar(&s.seeds, "seeds", precision.MinSeeds, "new seeds under which a case that fails is judged again; 0: it fails at once")
	flags.StringVar(&s.device, "device", "cpu", "where to compute: cpu or ascend:0")
	flags.BoolVar(&s.Compatible, "compatible", false, "compute what the published test computes, its weaknesses included, to compare with its numbers")
	gib := flags.Float64("memory", 0, "GiB that may be used, roughly; larger cases run in slices of tokens; 0: 4, or half of the machine's if that is less")
	flags.BoolVar(&s.json, "json", false, "write JSON in place of tables")
	flags.BoolVar(&s.sweep, "sweep", false, "random cases of the operator's specification: N 1-127, B 1-8, T 1-32768, D 1536 to 6144, bf16 and fp16")
	flags.IntVar(&s.cases, "cases", 24, "how many, for -sweep")
	flags.IntVar(&s.elements, "elements", 1<<24, "most elements of all rows together in a case of -sweep")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "Precision judges the BlockAttnRes operator against float64 and against small operations. Flags:")
			flags.SetOutput(out)
			flags.PrintDefaults()
		}
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	var ok bool
	if s.DType, ok = dtypes[*dtype]; !ok {
		return s, fmt.Errorf("-dtype is %q, want bf16, fp16, fp32 or fp64", *dtype)
	}
	switch *gamma {
	case "ones":
		s.Ones = true
	case "random":
	default:
		return s, fmt.Errorf("-gamma is %q, want ones or random", *gamma)
	}
	if s.level, err = precision.ParseLevel(*level); err != nil {
		return s, fmt.Errorf("-level is %q, want L0, L1 or L2", *level)
	}
	switch *inputs {
	case "normal":
	case "level":
		s.Inputs = &s.level
	default:
		return s, fmt.Errorf("-inputs is %q, want normal or level", *inputs)
	}
	if s.seeds != 0 && s.seeds < precision.MinSeeds {
		return s, fmt.Errorf("-seeds is %d, want 0 or at least %d", s.seeds, precision.MinSeeds)
	}
	if !(*gib >= 0 && *gib < 1<<20) {
		return s, fmt.Errorf("-memory is %v, want GiB", *gib)
	}
	if s.Memory = int(*gib * (1 << 30)); s.Memory == 0 {
		s.Memory = min(4<<30, memory.Limit()/2)
	}
	if s.sweep && (s.cases < 1 || s.elements < 1536) {
		return s, fmt.Errorf("-cases is %d and -elements %d, want at least 1 and 1536", s.cases, s.elements)
	}
	if err := s.Check(); err != nil {
		var arg *tensor.ArgError
		if errors.As(err, &arg) {
			return s, fmt.Errorf("-%s is %s, want %s", arg.Arg, arg.Got, arg.Want)
		}
		return s, err
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	s, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		var place tensor.Device
		if place, err = tensor.ParseDevice(s.device); err == nil && place != tensor.CPU {
			err = fmt.Errorf("-device is %q: this build has no such backend yet, want cpu", s.device)
		}
	}
	if err != nil {
		fmt.Fprintln(errs, "precision:", err)
		return 2
	}
	f, terminal := errs.(*os.File)
	s.quiet = !terminal || !term.IsTerminal(int(f.Fd()))
	dev := cpu.New()
	defer dev.Close()
	return s.run(ctx, dev, out, errs)
}

// run judges on a device and gives the exit status.
func (s settings) run(ctx context.Context, dev device.Device, out, errs io.Writer) int {
	judge := s.one
	if s.sweep {
		judge = s.all
	}
	passed, err := judge(ctx, dev, out, errs)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(errs, "precision: interrupted")
		return 1
	case err != nil:
		fmt.Fprintln(errs, "precision:", err)
		return 1
	case !passed:
		return 1
	}
	return 0
}

// bar is a progress bar on a terminal, and nothing elsewhere.
func (s settings) bar(errs io.Writer, all int, what string) *progressbar.ProgressBar {
	if s.quiet {
		errs = io.Discard
	}
	return progressbar.NewOptions(all, progressbar.OptionSetWriter(errs), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
}

// outcome is a case with everything that was found about it.
type outcome struct {
	Case    string                       `json:"case"`
	Level   string                       `json:"level"`
	Passed  bool                         `json:"passed"`
	Ulps    precision.Histogram          `json:"ulps"` // of all outputs and gradients but the caches
	Results []precision.Result           `json:"results"`
	Recheck map[string]precision.Verdict `json:"recheck,omitempty"` // of the outputs that failed
}

// judge runs a case, and once more under new seeds what fails.
func (s settings) judge(ctx context.Context, dev device.Device, c cascade.Case, errs io.Writer) (outcome, error) {
	bar := s.bar(errs, c.Slices(), "slices")
	results, err := c.Run(ctx, dev, func(done, all int) { _ = bar.Set(done) })
	_ = bar.Finish()
	o := outcome{Case: c.String(), Level: s.level.Name, Passed: true, Results: results}
	if err != nil {
		return o, err
	}
	var failed []int
	for i, r := range results {
		if !strings.HasSuffix(r.Output, "_cache") {
			o.Ulps = o.Ulps.Add(r.Ulps)
		}
		if !r.Passed(s.level) {
			failed = append(failed, i)
			// Numbers that are not finite are not a matter of luck.
			o.Passed = o.Passed && s.seeds > 0 && r.NonFinite.Wrong+r.NonFinite.Lost == 0
		}
	}
	if len(failed) == 0 || !o.Passed {
		return o, nil
	}
	ratios := make([][]precision.Ratios, len(failed))
	bar = s.bar(errs, s.seeds, fmt.Sprintf("%d failed: new seeds", len(failed)))
	for k := range s.seeds {
		again := c
		again.Seed = c.Seed + uint64(k) + 1
		results, err := again.Run(ctx, dev, nil)
		if err != nil {
			return o, err
		}
		for j, i := range failed {
			ratios[j] = append(ratios[j], results[i].Ratios)
		}
		_ = bar.Add(1)
	}
	_ = bar.Finish()
	o.Recheck = map[string]precision.Verdict{}
	for j, i := range failed {
		v, err := precision.Recheck(ratios[j], s.level, random.Source{Seed: c.Seed, Stream: uint64(i)})
		if err != nil {
			return o, err
		}
		o.Recheck[results[i].Output] = v
		o.Passed = o.Passed && v.Passed
	}
	return o, nil
}

func word(passed bool) string {
	if passed {
		return "PASS"
	}
	return "FAILED"
}

func exactly(h precision.Histogram) string {
	return fmt.Sprintf("%.4f %% of %d numbers are the rounded float64 answer, %d one ulp from it, %d two, %d more", 100*float64(h.Zero)/float64(max(h.All(), 1)), h.All(), h.One, h.Two, h.More)
}

// one judges the case of the flags and prints its table.
func (s settings) one(ctx context.Context, dev device.Device, out, errs io.Writer) (bool, error) {
	o, err := s.judge(ctx, dev, s.Case, errs)
	if err != nil {
		return false, err
	}
	if s.json {
		return o.Passed, writeJSON(out, o)
	}
	fmt.Fprintf(out, "%s, slices: %d\n", o.Case, s.Slices())
	if err := precision.Table(out, s.level, o.Results...); err != nil {
		return false, err
	}
	s.explain(out, o)
	if !s.Compatible { // the published test knows no ulps
		fmt.Fprintln(out, exactly(o.Ulps))
	}
	fmt.Fprintln(out, word(o.Passed))
	return o.Passed, nil
}

// explain says why outputs failed, and what new seeds said.
func (s settings) explain(out io.Writer, o outcome) {
	for _, r := range o.Results {
		if r.Passed(s.level) {
			continue
		}
		fmt.Fprintln(out, r.Failure(s.level))
		if v, ok := o.Recheck[r.Output]; ok {
			fmt.Fprintf(out, "  median ratios under %d new seeds, 95 %%: MARE %.3g to %.3g, MERE %.3g to %.3g, RMSE %.3g to %.3g, small %.3g to %.3g: %s\n",
				v.Seeds, v.MARE.Low, v.MARE.High, v.MERE.Low, v.MERE.High, v.RMSE.Low, v.RMSE.High, v.Small.Low, v.Small.High, word(v.Passed))
		}
	}
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// specification is a random case of the operator's generalisation specification
// within the bound of elements.
func (s settings) specification(i int) cascade.Case {
	src := random.Source{Seed: s.Seed, Stream: 7000 + uint64(i)}
	widths := []int{1536, 2048, 2560, 4096, 5120, 6144}
	for k := uint64(0); ; k += 8 {
		c := s.Case
		c.Seed = s.Seed + uint64(i)
		c.N, c.B = logUniform(src, k, 127), 1+src.Intn(k+1, 8)
		c.T, c.D = logUniform(src, k+2, 32768), widths[src.Intn(k+3, len(widths))]
		c.DType = []tensor.DType{tensor.BFloat16, tensor.Float16}[i%2]
		c.Scale = []float64{1, -0.7, 3, 0}[src.Intn(k+4, 4)]
		c.Partial, c.Ones, c.RMSNorm, c.Compatible = src.Intn(k+5, 2) == 0, src.Intn(k+6, 4) == 0, src.Intn(k+7, 4) != 0, false
		rows := c.N
		if c.Partial {
			rows++
		}
		if c.B*c.T*rows*c.D <= s.elements || k > 1<<20 && c.B*c.T*rows == 1 {
			return c
		}
	}
}

// logUniform is 1 to most, every size equally likely.
func logUniform(src random.Source, i uint64, most int) int {
	bits := 0
	for most>>bits > 0 {
		bits++
	}
	size := src.Intn(i<<1|1<<40, bits)
	return min(1<<size+src.Intn(i<<1|1<<40|1, 1<<size), most)
}

// all judges random cases of the specification, a line each.
func (s settings) all(ctx context.Context, dev device.Device, out, errs io.Writer) (bool, error) {
	passed := 0
	var ulps precision.Histogram
	var list []outcome
	bar := s.bar(errs, s.cases, "cases")
	for i := range s.cases {
		c := s.specification(i)
		quiet := s
		quiet.quiet = true // the bar of cases is enough
		o, err := quiet.judge(ctx, dev, c, errs)
		if err != nil {
			return false, err
		}
		ulps = ulps.Add(o.Ulps)
		if o.Passed {
			passed++
		}
		if !s.quiet {
			_ = bar.Clear()
		}
		if s.json {
			list = append(list, o)
		} else {
			worst := slices.MaxFunc(o.Results, func(a, b precision.Result) int {
				return compare(a.Ratios.MARE/s.level.Limit.MARE, b.Ratios.MARE/s.level.Limit.MARE)
			})
			fmt.Fprintf(out, "%s  %s  worst MARE ratio %.3f (%s), %.4f %% exact\n", word(o.Passed), o.Case, worst.Ratios.MARE, worst.Output, 100*float64(o.Ulps.Zero)/float64(max(o.Ulps.All(), 1)))
			s.explain(out, o)
		}
		_ = bar.Add(1)
	}
	_ = bar.Finish()
	if s.json {
		return passed == s.cases, writeJSON(out, list)
	}
	fmt.Fprintf(out, "%d of %d cases pass at %s\n%s\n%s\n", passed, s.cases, s.level.Name, exactly(ulps), word(passed == s.cases))
	return passed == s.cases, nil
}

func compare(a, b float64) int {
	switch {
	case a != a || a > b:
		return 1
	case a < b:
		return -1
	}
	return 0
}
