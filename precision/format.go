package precision

import (
	"math"

	"github.com/lamina-go/lamina/tensor"
)

// Format is a number format with the thresholds of the standard.
type Format struct {
	Name       string
	SmallValue float64 // |golden| below it is a small value
	SmallError float64 // a small value may be off by this
	Digits     int     // significant binary digits
	MinExp     int     // exponent of the smallest normal number, 2^MinExp
	Max        float64 // largest finite number

	// The community forms: the old threshold, and of the new form the relative
	// and absolute tolerance and the largest absolute error. 0 where there is none.
	Community, RTol, ATol, MaxError float64
	MaxUlps                         float64 // the new form's alternative to MaxError; 0: none
}

// The formats of the standard. HF32 is float32 with 11 binary digits, as the
// matrix unit of an Ascend NPU rounds it.
var (
	FP16    = Format{"FP16", 0x1p-11, 0x1p-16, 11, -14, 65504, 0x1p-10, 0x1p-9, 0x1p-9, 0.1, 0}
	BF16    = Format{"BF16", 0x1p-8, 0x1p-16, 8, -126, 0x1.fep127, 0x1p-7, 0x1p-6, 0x1p-6, 1, 0}
	FP32    = Format{"FP32", 0x1p-14, 0x1p-30, 24, -126, math.MaxFloat32, 0x1p-13, 0x1p-10, 0x1p-16, 0.01, 32}
	HF32    = Format{"HF32", 0x1p-12, 0x1p-28, 11, -126, math.MaxFloat32, 0, 0, 0, 0, 0}
	FP8E4M3 = Format{"FP8E4M3", 0x1p-4, 0x1p-6, 4, -6, 448, 0, 0, 0, 0, 0}
	FP8E5M2 = Format{"FP8E5M2", 0x1p-3, 0x1p-5, 3, -14, 57344, 0, 0, 0, 0, 0}
)

// Formats are all of them.
func Formats() []Format { return []Format{FP16, BF16, FP32, HF32, FP8E4M3, FP8E5M2} }

// FormatOf is the format of a dtype. Float64, for which the standard has no
// thresholds, is judged by FP32's with its own digits. Integers have none: they
// must be equal.
func FormatOf(d tensor.DType) (f Format, ok bool) {
	switch d {
	case tensor.Float16:
		return FP16, true
	case tensor.BFloat16:
		return BF16, true
	case tensor.Float32:
		return FP32, true
	case tensor.Float64:
		f = FP32
		f.Name, f.Digits, f.MinExp, f.Max = "FP64", 53, -1022, math.MaxFloat64
		return f, true
	}
	return Format{}, false
}

// Ulp is the distance of the numbers of the format around x; NaN if x is not finite.
func (f Format) Ulp(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.NaN()
	}
	_, e := math.Frexp(x) // |x| in [2^(e-1), 2^e)
	if x == 0 {
		e = f.MinExp
	}
	return math.Ldexp(1, max(e-1, f.MinExp)-f.Digits+1)
}

// Round is the number of the format nearest to x, ties to even; beyond Max, by
// half a unit or more, it is infinite.
func (f Format) Round(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	u := f.Ulp(x)
	r := math.RoundToEven(x/u) * u // x/u is exact, and below 2^53
	if math.Abs(r) > f.Max {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return r
}

// Level is how much worse than the benchmark a kernel may be.
type Level struct {
	Name  string
	Limit Ratios
	Cases int // that the standard asks for
}

// The levels of the standard. Every one allows twice as many small values
// beyond their error as the benchmark has.
var (
	L0 = Level{"L0", Ratios{10, 2, 2, 2}, 5000}
	L1 = Level{"L1", Ratios{5, 1.5, 1.5, 2}, 10000}
	L2 = Level{"L2", Ratios{2, 1.2, 1.2, 2}, 30000}
)

// ParseLevel finds a level by its name, such as "L2"; another is an error that wraps tensor.ErrValue.
func ParseLevel(name string) (Level, error) {
	for _, l := range []Level{L0, L1, L2} {
		if l.Name == name {
			return l, nil
		}
	}
	return Level{}, argError("level", name, "L0, L1 or L2")
}

func argError(arg, got, want string) error {
	return &tensor.ArgError{Op: "precision", Arg: arg, Got: got, Want: want, Kind: tensor.ErrValue}
}

// Ratios are the kernel's metrics over the benchmark's.
type Ratios struct {
	MARE  float64 `json:"mare"`
	MERE  float64 `json:"mere"`
	RMSE  float64 `json:"rmse"`
	Small float64 `json:"small"` // counts of small values beyond their error
}

// Within reports whether no ratio is beyond its limit; a NaN is.
func (r Ratios) Within(limit Ratios) bool {
	return r.MARE <= limit.MARE && r.MERE <= limit.MERE && r.RMSE <= limit.RMSE && r.Small <= limit.Small
}
