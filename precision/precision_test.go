package precision

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

var (
	nan, inf = math.NaN(), math.Inf(1)
	negZero  = math.Copysign(0, -1)
)

// Round and Ulp are those of the dtypes that the engine has.
func TestRound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, d := range []tensor.DType{tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64} {
		f, ok := FormatOf(d)
		if !ok {
			t.Fatal(d)
		}
		list := []float64{0, negZero, 1, inf, -inf, nan, f.Max, math.MaxFloat64, 0x1p-1074, 65504, 65519.9, 65520, 65536, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-133, 0x1p-134, 0x1p-149, 0x1p-150, 0x1.8p-150}
		for range 20000 {
			list = append(list, math.Ldexp(r.NormFloat64(), r.IntN(320)-160), r.NormFloat64()*65000, math.Ldexp(float64(r.IntN(1<<12)), r.IntN(60)-40))
		}
		for _, x := range list {
			for _, x := range []float64{x, -x} {
				got, want := f.Round(x), tensor.Round(d, x)
				if math.Float64bits(got) != math.Float64bits(want) && !(got != got && want != want) {
					t.Fatalf("%s: Round(%v) = %v, want %v", f.Name, x, got, want)
				}
				if u := f.Ulp(want); finite(want) && want+u != want && finite(want+u) && math.Abs(want) < f.Max && want > 0 {
					if next := tensor.Round(d, want+u*0.5000001); next != want+u {
						t.Fatalf("%s: the number after %v is %v, Ulp says %v", f.Name, want, next, want+u)
					}
				}
			}
		}
	}
	if _, ok := FormatOf(tensor.Int32); ok {
		t.Error("an integer type has thresholds")
	}
	for _, c := range []struct {
		f       Format
		x, want float64
	}{
		{FP8E4M3, 1.06, 1}, {FP8E4M3, 1.07, 1.125}, {FP8E4M3, 448, 448}, {FP8E4M3, 463, 448}, {FP8E4M3, 465, inf}, {FP8E4M3, 0x1p-9, 0x1p-9}, {FP8E4M3, 0x1.8p-9, 0x1p-8},
		{FP8E5M2, 1.1, 1}, {FP8E5M2, 1.2, 1.25}, {FP8E5M2, -61439, -57344}, {FP8E5M2, 0x1p-16, 0x1p-16}, {HF32, 1 + 0x1p-10, 1 + 0x1p-10}, {HF32, 1 + 0x1p-11, 1}, {HF32, 1 + 0x1.8p-11, 1 + 0x1p-10},
	} {
		if got := c.f.Round(c.x); got != c.want {
			t.Errorf("%s: Round(%v) = %v, want %v", c.f.Name, c.x, got, c.want)
		}
	}
	if !math.IsNaN(FP16.Ulp(inf)) || FP16.Ulp(0) != 0x1p-24 || BF16.Ulp(1) != 0x1p-7 || BF16.Ulp(0.999) != 0x1p-8 {
		t.Error("Ulp")
	}
}

// The thresholds are the standard's table.
func TestFormats(t *testing.T) {
	want := map[string][2]float64{"FP16": {0x1p-11, 0x1p-16}, "BF16": {0x1p-8, 0x1p-16}, "FP32": {0x1p-14, 0x1p-30}, "HF32": {0x1p-12, 0x1p-28}, "FP8E4M3": {0x1p-4, 0x1p-6}, "FP8E5M2": {0x1p-3, 0x1p-5}}
	if len(Formats()) != len(want) {
		t.Fatalf("%d formats", len(Formats()))
	}
	for _, f := range Formats() {
		if w := want[f.Name]; f.SmallValue != w[0] || f.SmallError != w[1] {
			t.Errorf("%s: %v %v", f.Name, f.SmallValue, f.SmallError)
		}
	}
	for name, want := range map[string]Ratios{"L0": {10, 2, 2, 2}, "L1": {5, 1.5, 1.5, 2}, "L2": {2, 1.2, 1.2, 2}} {
		if l, err := ParseLevel(name); err != nil || l.Limit != want {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	if _, err := ParseLevel("L3"); !errors.Is(err, tensor.ErrValue) {
		t.Error(err)
	}
	if L0.Cases != 5000 || L1.Cases != 10000 || L2.Cases != 30000 {
		t.Error("counts of cases")
	}
}

func compared(t *testing.T, f Format, o Options, k, b, g []float64) Result {
	t.Helper()
	whole, parts := NewComparison("x", f, o), NewComparison("x", f, o)
	if err := whole.Add(k, b, g); err != nil {
		t.Fatal(err)
	}
	for i := range g { // in slices it is the same
		if err := parts.Add(k[i:i+1], b[i:i+1], g[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	r, p := whole.Result(), parts.Result()
	if a, b := encode(t, r), encode(t, p); a != b {
		t.Errorf("all at once %s, in slices %s", a, b)
	}
	return r
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func near(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-12*math.Max(math.Abs(a), math.Abs(b))
}

// The metrics by hand.
func TestMetrics(t *testing.T) {
	// FP16: below 2^-11 = 4.9e-4 a value is small, and may be off by 2^-16 = 1.5e-5.
	g := []float64{1, -2, 4, 1e-4, 2e-4, -3e-4, 0x1p-11, 0}
	k := []float64{1.01, -2, 3.9, 1e-4 + 2e-5, 2e-4, -3e-4, 0x1p-11, 1.5e-5}
	b := []float64{1, -2.1, 4, 1e-4, 2e-4 + 2e-5, -3e-4 - 2e-5, 0x1.1p-11, 1.6e-5}
	r := compared(t, FP16, Options{}, k, b, g)
	re := func(a, g float64) float64 { return math.Abs(a-g) / (math.Abs(g) + 1e-7) }
	km := Metrics{re(3.9, 4), (re(1.01, 1) + re(3.9, 4)) / 4, math.Sqrt((math.Pow(1.01-1, 2) + math.Pow(3.9-4, 2)) / 4), 1}
	bm := Metrics{re(0x1.1p-11, 0x1p-11), (re(-2.1, -2) + re(0x1.1p-11, 0x1p-11)) / 4, math.Sqrt((math.Pow(2.1-2, 2) + math.Pow(0x1p-15, 2)) / 4), 3}
	for name, c := range map[string][2]Metrics{"kernel": {r.Kernel, km}, "benchmark": {r.Benchmark, bm}} {
		if a, w := c[0], c[1]; !near(a.MARE, w.MARE) || !near(a.MERE, w.MERE) || !near(a.RMSE, w.RMSE) || a.Small != w.Small {
			t.Errorf("%s: %+v, want %+v", name, a, w)
		}
	}
	want := Ratios{km.MARE / bm.MARE, km.MERE / bm.MERE, km.RMSE / bm.RMSE, 1.0 / 3}
	if got := r.Ratios; !near(got.MARE, want.MARE) || !near(got.MERE, want.MERE) || !near(got.RMSE, want.RMSE) || !near(got.Small, want.Small) {
		t.Errorf("ratios %+v, want %+v", got, want)
	}
	if r.Elements != 8 || r.Large != 4 || r.Worst.Index != 2 || r.Worst.Kernel != 3.9 || r.Worst.Golden != 4 || r.WorstSmall.Index != 3 {
		t.Errorf("%+v", r)
	}
	// A benchmark without error counts as the threshold.
	r = compared(t, BF16, Options{}, []float64{1.5}, []float64{1}, []float64{1})
	if !near(r.Ratios.MARE, re(1.5, 1)*256) || !near(r.Ratios.RMSE, 0.5*256) {
		t.Errorf("%+v", r.Ratios)
	}
	// Nothing large, or nothing at all, is no error.
	for _, x := range [][]float64{{}, {0, 0}} {
		if r := compared(t, BF16, Options{}, x, x, x); r.Ratios != (Ratios{}) || !r.Passed(L2) {
			t.Errorf("%v: %+v", x, r)
		}
	}
	if c := NewComparison("y", FP16, Options{}); c.Add([]float64{1}, nil, []float64{1}) == nil || c.Result().Elements != 0 {
		t.Error("slices of different lengths are taken")
	}
	var none *Comparison
	if none.Add(nil, nil, nil) == nil || none.Result().Elements != 0 {
		t.Error("a nil comparison")
	}
}

func TestLevels(t *testing.T) {
	for _, c := range []struct {
		r          Ratios
		l0, l1, l2 bool
	}{
		{Ratios{2, 1.2, 1.2, 2}, true, true, true}, {Ratios{2.01, 1, 1, 0}, true, true, false}, {Ratios{1, 1.21, 1, 0}, true, true, false}, {Ratios{1, 1, 1.21, 0}, true, true, false},
		{Ratios{5, 1.5, 1.5, 0}, true, true, false}, {Ratios{5.01, 1, 1, 0}, true, false, false}, {Ratios{1, 1.51, 1, 0}, true, false, false}, {Ratios{1, 1, 2.01, 0}, false, false, false},
		{Ratios{10, 2, 2, 2}, true, false, false}, {Ratios{10.1, 1, 1, 0}, false, false, false}, {Ratios{0, 0, 0, 2.01}, false, false, false},
		{Ratios{nan, 1, 1, 0}, false, false, false}, {Ratios{0, nan, 1, 0}, false, false, false}, {Ratios{0, 0, nan, 0}, false, false, false}, {Ratios{0, 0, 0, nan}, false, false, false},
	} {
		for i, want := range []bool{c.l0, c.l1, c.l2} {
			l := []Level{L0, L1, L2}[i]
			r := Result{Output: "grad_x", Ratios: c.r, Worst: Worst{Index: 7, Kernel: 1.25, Benchmark: 2.5, Golden: 3.75}, WorstSmall: Worst{Index: 9}}
			if got := r.Passed(l); got != want {
				t.Errorf("%+v at %s: %v", c.r, l.Name, got)
			}
			f := r.Failure(l)
			if (f == "") != want {
				t.Errorf("%+v at %s: failure %q", c.r, l.Name, f)
			}
			if !want && c.r.Small == 0 && (!strings.Contains(f, "grad_x") || !strings.Contains(f, "[7]") || !strings.Contains(f, "1.25") || !strings.Contains(f, "2.5") || !strings.Contains(f, "3.75")) {
				t.Errorf("failure without output, index and values: %q", f)
			}
		}
	}
}

func TestNonFinite(t *testing.T) {
	for _, c := range []struct {
		k, b, g float64
		want    NonFinite
		passed  bool
	}{
		{nan, nan, nan, NonFinite{Right: 1}, true}, {inf, inf, inf, NonFinite{Right: 1}, true},
		{inf, inf, 1, NonFinite{Right: 1}, true}, // as the benchmark
		{1, 2, inf, NonFinite{Right: 1}, true},   // finite, as the benchmark
		{inf, 2, inf, NonFinite{Right: 1}, true}, // as the golden
		{nan, inf, nan, NonFinite{Right: 1}, true},
		{1, nan, nan, NonFinite{Wrong: 1}, false}, {-inf, inf, inf, NonFinite{Wrong: 1}, false}, {nan, -inf, -inf, NonFinite{Wrong: 1}, false},
		{nan, 1, 1, NonFinite{Lost: 1}, false}, {inf, 1, 1, NonFinite{Lost: 1}, false},
		{1, nan, 1, NonFinite{Look: 1}, true}, {inf, nan, 1, NonFinite{Look: 1}, true}, {1, nan, inf, NonFinite{Look: 1}, true}, {nan, 1, inf, NonFinite{Look: 1}, true},
	} {
		r := compared(t, BF16, Options{}, []float64{1, c.k}, []float64{1, c.b}, []float64{1, c.g})
		c.want.First = -1
		if c.want.Right == 0 {
			c.want.First = 1
		}
		if r.NonFinite != c.want || r.Passed(L2) != c.passed || r.Large != 1 || r.Ulps.All() != 1 {
			t.Errorf("%v %v %v: %+v, passed %v", c.k, c.b, c.g, r.NonFinite, r.Passed(L2))
		}
		if !c.passed && !strings.Contains(r.Failure(L2), "the first at 1") {
			t.Errorf("%q", r.Failure(L2))
		}
	}
}

// Numbers of the published test's own functions.
func TestCompatible(t *testing.T) {
	for _, c := range []struct {
		name    string
		k, b, g []float64
		want    Ratios
		passed  bool
	}{
		{"bf16", []float64{-2.175569534301758e-06, 1.4677643775939941e-06, 6.705522537231445e-06, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06, 0.65234375, 0.91015625, 1.078125, 0.34375, 0.71875, 0.83203125, 0.5078125, -1.5234375, -1.8984375, 0.248046875, 0.02880859375, 0.2421875, 0.78515625, -1.0, 1.1875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.175569534301758e-06, 1.4826655387878418e-06, 6.67572021484375e-06, -5.066394805908203e-06, -1.5854835510253906e-05, -7.420778274536133e-06, 0.6484375, 0.91015625, 1.0703125, 0.34765625, 0.72265625, 0.84765625, 0.5, -1.515625, -1.9140625, 0.25, 0.028564453125, 0.2421875, 0.78515625, -1.03125, 1.171875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06, 0.653905739227061, 0.9104898970780404, 1.0784352439814244, 0.34363379791442283, 0.7198251676658504, 0.8306180904619974, 0.5086538773635347, -1.5265849021757647, -1.9011297009275108, 0.2482403276470407, 0.028752867895017985, 0.24243710319485537, 0.7841722963522199, -0.9984183369540185, 1.1860480205849184, 0.4136633498764265, 0.18411092659478248, -0.15401259447374294}, Ratios{0.07587861080791128, 0.16607728896293975, 0.1204029757482504, 1.0}, true},
		{"worse", []float64{-2.175569534301758e-06, 1.4826655387878418e-06, 6.67572021484375e-06, -5.066394805908203e-06, -1.5854835510253906e-05, -7.420778274536133e-06, 0.6484375, 0.91015625, 1.0703125, 0.34765625, 0.72265625, 0.84765625, 0.5, -1.515625, -1.9140625, 0.25, 0.028564453125, 0.2421875, 0.78515625, -1.03125, 1.171875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.175569534301758e-06, 1.4677643775939941e-06, 6.705522537231445e-06, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06, 0.65234375, 0.91015625, 1.078125, 0.34375, 0.71875, 0.83203125, 0.5078125, -1.5234375, -1.8984375, 0.248046875, 0.02880859375, 0.2421875, 0.78515625, -1.0, 1.1875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06, 0.653905739227061, 0.9104898970780404, 1.0784352439814244, 0.34363379791442283, 0.7198251676658504, 0.8306180904619974, 0.5086538773635347, -1.5265849021757647, -1.9011297009275108, 0.2482403276470407, 0.028752867895017985, 0.24243710319485537, 0.7841722963522199, -0.9984183369540185, 1.1860480205849184, 0.4136633498764265, 0.18411092659478248, -0.15401259447374294}, Ratios{13.178944492427867, 6.021292894678397, 8.30544256722435, 1.0}, false},
		{"benchmark NaN passes anything", []float64{-2.175569534301758e-06, 1.4677643775939941e-06, 6.705522537231445e-06, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06, 0.65234375, 0.91015625, 1.078125, 0.34375, 0.71875, 0.83203125, 1.0002555517425873e+30, -1.5234375, -1.8984375, 0.248046875, 0.02880859375, 0.2421875, 0.78515625, -1.0, 1.1875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.175569534301758e-06, 1.4826655387878418e-06, 6.67572021484375e-06, -5.066394805908203e-06, -1.5854835510253906e-05, -7.420778274536133e-06, 0.6484375, 0.91015625, 1.0703125, nan, 0.72265625, 0.84765625, 0.5, -1.515625, -1.9140625, 0.25, 0.028564453125, 0.2421875, 0.78515625, -1.03125, 1.171875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06, 0.653905739227061, 0.9104898970780404, 1.0784352439814244, 0.34363379791442283, 0.7198251676658504, 0.8306180904619974, 0.5086538773635347, -1.5265849021757647, -1.9011297009275108, 0.2482403276470407, 0.028752867895017985, 0.24243710319485537, 0.7841722963522199, -0.9984183369540185, 1.1860480205849184, 0.4136633498764265, 0.18411092659478248, -0.15401259447374294}, Ratios{1, 1, 1, 1.0}, true},
		{"NaN among small values", []float64{-2.175569534301758e-06, 1.4677643775939941e-06, nan, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06, 0.65234375, 0.91015625, 1.078125, 0.34375, 0.71875, 0.83203125, 0.5078125, -1.5234375, -1.8984375, 0.248046875, 0.02880859375, 0.2421875, 0.78515625, -1.0, 1.1875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.175569534301758e-06, 1.4826655387878418e-06, 6.67572021484375e-06, -5.066394805908203e-06, -1.5854835510253906e-05, -7.420778274536133e-06, 0.6484375, 0.91015625, 1.0703125, 0.34765625, 0.72265625, 0.84765625, 0.5, -1.515625, -1.9140625, 0.25, 0.028564453125, 0.2421875, 0.78515625, -1.03125, 1.171875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06, 0.653905739227061, 0.9104898970780404, 1.0784352439814244, 0.34363379791442283, 0.7198251676658504, 0.8306180904619974, 0.5086538773635347, -1.5265849021757647, -1.9011297009275108, 0.2482403276470407, 0.028752867895017985, 0.24243710319485537, 0.7841722963522199, -0.9984183369540185, 1.1860480205849184, 0.4136633498764265, 0.18411092659478248, -0.15401259447374294}, Ratios{0.07587861080791128, 0.16607728896293975, 0.1204029757482504, 0.8333333333333334}, true},
		{"kernel Inf", []float64{-2.175569534301758e-06, 1.4677643775939941e-06, 6.705522537231445e-06, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06, 0.65234375, 0.91015625, 1.078125, 0.34375, 0.71875, 0.83203125, 0.5078125, -1.5234375, -1.8984375, 0.248046875, 0.02880859375, 0.2421875, 0.78515625, -1.0, inf, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.175569534301758e-06, 1.4826655387878418e-06, 6.67572021484375e-06, -5.066394805908203e-06, -1.5854835510253906e-05, -7.420778274536133e-06, 0.6484375, 0.91015625, 1.0703125, 0.34765625, 0.72265625, 0.84765625, 0.5, -1.515625, -1.9140625, 0.25, 0.028564453125, 0.2421875, 0.78515625, -1.03125, 1.171875, 0.4140625, 0.1845703125, -0.154296875}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06, 0.653905739227061, 0.9104898970780404, 1.0784352439814244, 0.34363379791442283, 0.7198251676658504, 0.8306180904619974, 0.5086538773635347, -1.5265849021757647, -1.9011297009275108, 0.2482403276470407, 0.028752867895017985, 0.24243710319485537, 0.7841722963522199, -0.9984183369540185, 1.1860480205849184, 0.4136633498764265, 0.18411092659478248, -0.15401259447374294}, Ratios{1000, 1000, 1000, 1.0}, false},
		{"all small", []float64{negZero, 0.0, 0.0, negZero, negZero, negZero}, []float64{-2.175569534301758e-06, 1.4677643775939941e-06, 6.705522537231445e-06, -5.155801773071289e-06, -1.5854835510253906e-05, -7.4803829193115234e-06}, []float64{-2.177487917787642e-06, 1.466771298110492e-06, 6.690811213485476e-06, -5.141241139283437e-06, -1.5859705131070333e-05, -7.4773031585808065e-06}, Ratios{0.0, 0.0, 0.0, 1.0}, true},
	} {
		r := compared(t, BF16, Options{Compatible: true}, c.k, c.b, c.g)
		near := func(a, b float64) bool { return math.Abs(a-b) <= 2e-6*math.Abs(b) } // its means add in float32
		if got := r.Ratios; !near(got.MARE, c.want.MARE) || !near(got.MERE, c.want.MERE) || !near(got.RMSE, c.want.RMSE) || got.Small != c.want.Small || r.Passed(L2) != c.passed {
			t.Errorf("%s: %+v %v, want %+v %v", c.name, got, r.Passed(L2), c.want, c.passed)
		}
	}
}

// What lies on a limit exactly: an element of the threshold's size is not small,
// an error of the allowed size is allowed.
func TestLimitsThemselves(t *testing.T) {
	g := []float64{BF16.SmallValue, 0, 0}
	k := []float64{BF16.SmallValue, BF16.SmallError, 2 * BF16.SmallError}
	r := compared(t, BF16, Options{}, k, g, g)
	if r.Large != 1 || r.Kernel.Small != 1 {
		t.Errorf("%d large, %d small values off", r.Large, r.Kernel.Small)
	}
	g[0] = FP32.SmallValue
	k = []float64{FP32.SmallValue, FP32.SmallError, 2 * FP32.SmallError}
	if r := compared(t, BF16, Options{Compatible: true}, k, g, g); r.Large != 1 || r.Kernel.Small != 1 {
		t.Errorf("compatible: %d large, %d small values off", r.Large, r.Kernel.Small)
	}
	// Near 0 it is the absolute tolerance that counts.
	for _, f := range []Format{FP16, BF16, FP32} {
		if c, err := CommunityNew(f, []float64{f.ATol, -f.ATol}, []float64{0, 0}); err != nil || !c.Passed {
			t.Errorf("%s: %+v, %v", f.Name, c, err)
		}
	}
}

func TestUlps(t *testing.T) {
	g := []float64{1, 1, 1, 1, 1, -1, 0, 1.001}
	k := []float64{1, 1 + 0x1p-7, 1 + 0x1p-6, 1 + 0x1.8p-6, 1 - 0x1p-8, -1 - 0x1p-7, 0x1p-133, 1}
	r := compared(t, BF16, Options{}, k, k, g)
	if want := (Histogram{2, 4, 1, 1}); r.Ulps != want || want.Add(want).All() != 16 {
		t.Errorf("%+v, want %+v", r.Ulps, want)
	}
}

func TestCommunity(t *testing.T) {
	ones := func(n int, x float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = x
		}
		return v
	}
	with := func(x []float64, at int, y float64) []float64 {
		x[at] = y
		return x
	}
	for _, c := range []struct {
		name     string
		f        Format
		got      []float64
		old, new bool
	}{
		{"exact", BF16, ones(200, 1), true, true},
		{"off by less than t", BF16, ones(200, 1+0x1p-8), true, true},
		{"off by t", BF16, ones(200, 1+0x1.001p-7), false, true},
		{"one off by less than 10 t", BF16, with(ones(200, 1), 3, 1+9.9*0x1p-7), true, true},
		{"one off by 10 t", BF16, with(ones(200, 1), 3, 1+10.1*0x1p-7), false, true},
		{"two in 200 beyond the tolerance", BF16, with(with(ones(200, 1), 3, 1.04), 4, 1.04), true, true},
		{"three in 200", BF16, with(with(with(ones(200, 1), 3, 1.04), 4, 1.04), 5, 1.04), true, false},
		{"one beyond the largest error", BF16, with(ones(200, 1), 3, 2.01), false, false},
		{"NaN", BF16, with(ones(200, 1), 3, nan), false, false},
		{"fp16", FP16, ones(200, 1+0x1.001p-10), false, true}, {"fp16 within", FP16, ones(200, 1+0x1p-11), true, true}, {"fp16 beyond", FP16, with(ones(200, 1), 1, 1.11), false, false},
		{"fp32", FP32, ones(200, 1+0x1.001p-13), false, true}, {"fp32 within", FP32, ones(200, 1+0x1p-14), true, true}, {"fp32 beyond", FP32, with(ones(200, 1), 1, 1.011), false, false},
	} {
		golden := ones(len(c.got), 1)
		old, err := CommunityOld(c.f, c.got, golden)
		if err != nil || old.Passed != c.old {
			t.Errorf("%s, old: %+v, %v", c.name, old, err)
		}
		now, err := CommunityNew(c.f, c.got, golden)
		if err != nil || now.Passed != c.new {
			t.Errorf("%s, new: %+v, %v", c.name, now, err)
		}
	}
	// Of large float32 numbers 32 units in the last place may be more than 0.01.
	if c, err := CommunityNew(FP32, []float64{1e6 + 31*0x1p-4}, []float64{1e6}); err != nil || !c.Passed {
		t.Errorf("%+v %v", c, err)
	}
	if c, err := CommunityNew(FP32, []float64{1e6 + 33*0x1p-4}, []float64{1e6}); err != nil || c.Passed || c.Worst.Index != 0 {
		t.Errorf("%+v %v", c, err)
	}
	if c, err := CommunityOld(FP16, []float64{inf, nan}, []float64{inf, nan}); err != nil || !c.Passed {
		t.Errorf("%+v %v", c, err)
	}
	for _, f := range []func(Format, []float64, []float64) (Community, error){CommunityOld, CommunityNew} {
		if _, err := f(HF32, nil, nil); !errors.Is(err, tensor.ErrValue) {
			t.Error(err)
		}
		if _, err := f(FP16, []float64{1}, nil); !errors.Is(err, tensor.ErrValue) {
			t.Error(err)
		}
		if c, err := f(FP16, nil, nil); err != nil || !c.Passed {
			t.Error(c, err)
		}
	}
}

func TestBootstrap(t *testing.T) {
	src := random.Source{Seed: 3}
	x := make([]float64, 301)
	for i := range x {
		x[i] = 5 + src.Normal(uint64(i))
	}
	i := Bootstrap(x, Resamples, random.Source{Seed: 4})
	// The median of n normal numbers has a deviation of sqrt(pi/2n) = 0.072.
	if !(i.Low < i.Median && i.Median < i.High) || math.Abs(i.Median-5) > 0.2 || i.High-i.Low < 0.2 || i.High-i.Low > 0.4 {
		t.Errorf("%+v", i)
	}
	if j := Bootstrap(x, Resamples, random.Source{Seed: 4}); j != i {
		t.Error("another result for the same seed")
	}
	if i := Bootstrap([]float64{2, 2, 2, 2}, 100, src); i != (Interval{2, 2, 2}) {
		t.Errorf("%+v", i)
	}
	// Of six the median is half-way between the third and the fourth. At least four
	// of six draws are 0 in 0.9 % of all, at least three in 6 %.
	if i := Bootstrap([]float64{0, 1, 2, 3, 4, 5}, 20000, src); i != (Interval{0.5, 2.5, 4.5}) {
		t.Errorf("%+v", i)
	}
	if i := Bootstrap([]float64{1, 2}, 100, src); i.Median != 1.5 {
		t.Errorf("%+v", i)
	}
	if i := Bootstrap([]float64{nan, nan, 1}, 100, src); !math.IsInf(i.Median, 1) {
		t.Errorf("%+v", i)
	}
	if i := Bootstrap(nil, 100, src); !math.IsNaN(i.Median) {
		t.Errorf("%+v", i)
	}
}

func TestRecheck(t *testing.T) {
	list := func(n int, r func(i int) Ratios) []Ratios {
		out := make([]Ratios, n)
		for i := range out {
			out[i] = r(i)
		}
		return out
	}
	src := random.Source{Seed: 1}
	for name, c := range map[string]struct {
		ratios []Ratios
		passed bool
	}{
		"good":                     {list(200, func(int) Ratios { return Ratios{1, 1, 1, 1} }), true},
		"one unlucky seed in five": {list(200, func(i int) Ratios { return Ratios{map[bool]float64{true: 9, false: 1}[i%5 == 0], 1, 1, 0} }), true},
		"bad MARE":                 {list(200, func(i int) Ratios { return Ratios{2.1 + float64(i%3), 1, 1, 0} }), false},
		"bad MERE":                 {list(200, func(i int) Ratios { return Ratios{1, 1.3, 1, 0} }), false},
		"bad RMSE":                 {list(200, func(i int) Ratios { return Ratios{1, 1, 1.3, 0} }), false},
		"bad small":                {list(200, func(i int) Ratios { return Ratios{1, 1, 1, 3} }), false},
		"NaN":                      {list(200, func(i int) Ratios { return Ratios{nan, 1, 1, 0} }), false},
		// A median of 2.02 whose interval reaches below 2.
		"about the limit": {list(201, func(i int) Ratios { return Ratios{1.02 + float64(i)/100, 1, 1, 0} }), true},
	} {
		if v, err := Recheck(c.ratios, L2, src); err != nil || v.Passed != c.passed || v.Seeds != len(c.ratios) {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
	if _, err := Recheck(make([]Ratios, MinSeeds-1), L2, src); !errors.Is(err, tensor.ErrValue) {
		t.Error(err)
	}
}

// The shares and ranges of the distributions, and that slices of a tensor are the tensor.
func TestInputs(t *testing.T) {
	for _, l := range []Level{L0, L1, L2} {
		counts := map[string]int{}
		const n = 4000
		for i := range n {
			s := random.Source{Seed: 9, Stream: uint64(i)}
			d := InputsOf(l, s)
			name := d.Name
			x := make([]float64, 50)
			d.Fill(x, random.Source{Seed: uint64(i)}, 0)
			most, sum := 0.0, 0.0
			for _, v := range x {
				most, sum = math.Max(most, math.Abs(v)), sum+v/50
			}
			switch name {
			case "uniform":
				if most <= 1e-3 {
					name = "tiny"
				} else if most > 5 || most < 2 {
					t.Errorf("%s: uniform up to %v", l.Name, most)
				}
			case "normal":
				if math.Abs(sum) > 100+25 {
					t.Errorf("%s: a mean of %v", l.Name, sum)
				}
			}
			counts[name]++
			half := make([]float64, 25)
			d.Fill(half, random.Source{Seed: uint64(i)}, 25)
			for j := range half {
				if half[j] != x[25+j] {
					t.Fatalf("%s: element %d depends on the slice", name, 25+j)
				}
			}
		}
		want := map[string]float64{"tiny": 0.1, "uniform": 0.3, "normal": 0.4, "outliers": 0.2}
		if l.Name == "L0" {
			want = map[string]float64{"uniform": 0.5, "normal": 0.5}
		}
		for name, share := range want {
			if got := float64(counts[name]) / n; math.Abs(got-share) > 0.03 {
				t.Errorf("%s: %s is %v of the cases, want %v", l.Name, name, got, share)
			}
		}
		if len(counts) != len(want) {
			t.Errorf("%s: %v", l.Name, counts)
		}
	}
	x := make([]float64, 100000)
	WithOutliers(Constant("ones", 1)).Fill(x, random.Source{Seed: 1}, 0)
	outliers := 0
	for _, v := range x {
		if v == 1000 {
			outliers++
		} else if v != 1 {
			t.Fatal(v)
		}
	}
	if outliers < 70 || outliers > 130 {
		t.Errorf("%d outliers among %d", outliers, len(x))
	}
	special := Specials()
	for i, d := range special {
		d.Fill(x, random.Source{Seed: 2}, 0)
		var c [4]int
		for _, v := range x {
			c[class(v)+1]++
		}
		if want := [][4]bool{{false, false, false, true}, {false, false, true, false}, {true, true, true, false}}[i]; (c[0] > 0) != want[0] || (c[1] > 0) != want[1] || (c[2] > 0) != want[2] || (c[3] > 0) != want[3] {
			t.Errorf("%s: -Inf, finite, Inf, NaN: %v", d.Name, c)
		}
	}
	if (Distribution{}).At(random.Source{}, 3) != 0 {
		t.Error("the zero distribution")
	}
}

func TestReport(t *testing.T) {
	good := compared(t, BF16, Options{}, []float64{1, 2}, []float64{1, 2}, []float64{1, 2})
	bad := compared(t, BF16, Options{}, []float64{1, nan}, []float64{1, 2}, []float64{1, 2})
	bad.Output = "other"
	var b bytes.Buffer
	if err := Table(&b, L1, good, bad); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "MARE") || !strings.Contains(lines[0], "L1") || !strings.HasSuffix(lines[1], "PASS") || !strings.HasSuffix(lines[2], "FAILED") {
		t.Errorf("%s", b.String())
	}
	var back map[string]any
	r := bad
	r.Worst = Worst{Index: 1, Kernel: nan, Benchmark: inf, Golden: -inf, Error: nan}
	r.Ratios.MARE = nan
	if err := json.Unmarshal([]byte(encode(t, r)), &back); err != nil {
		t.Fatal(err)
	}
	worst := back["worst"].(map[string]any)
	if worst["kernel"] != "NaN" || worst["benchmark"] != "+Inf" || worst["golden"] != "-Inf" || back["ratios"].(map[string]any)["mare"] != "NaN" || back["format"] != "BF16" || back["worst_small"] != nil {
		t.Errorf("%v", back)
	}
	v, err := Recheck(make([]Ratios, MinSeeds), L0, random.Source{})
	if err != nil || !strings.Contains(encode(t, v), `"seeds":200`) {
		t.Error(err)
	}
}
