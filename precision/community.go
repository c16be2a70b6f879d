package precision

import (
	"fmt"
	"math"
)

// Community is the outcome of a comparison with one golden.
type Community struct {
	Passed bool    `json:"passed"`
	MERE   float64 `json:"mere"`   // old form
	MARE   float64 `json:"mare"`   // old form
	Within float64 `json:"within"` // new form: the part of the elements within the tolerance
	Error  float64 `json:"error"`  // new form: the largest absolute error
	Worst  Worst   `json:"-"`      // by relative error (old) or absolute error (new)
}

// CommunityOld passes if MERE < t and MARE < 10 t over all elements, with the
// format's threshold t: 2^-10 for FP16, 2^-7 for BF16, 2^-13 for FP32. The
// relative error is that of the triple comparison. A number that is not finite
// must be of the golden's class. Errors: a format that the form has no
// threshold for, slices that differ in length.
func CommunityOld(f Format, got, golden []float64) (Community, error) {
	if err := community(f, f.Community, got, golden); err != nil {
		return Community{}, err
	}
	c := Community{Passed: true, Worst: Worst{Index: -1}}
	var sum float64
	n := 0
	for i, g := range golden {
		if !finite(g) || !finite(got[i]) {
			c.Passed = c.Passed && class(g) == class(got[i])
			continue
		}
		re := math.Abs(got[i]-g) / (math.Abs(g) + 1e-7)
		c.Worst.offer(i, got[i], math.NaN(), g, re)
		c.MARE = max(c.MARE, re)
		sum += re
		n++
	}
	if n > 0 {
		c.MERE = sum / float64(n)
	}
	c.Passed = c.Passed && c.MERE < f.Community && c.MARE < 10*f.Community
	return c, nil
}

// CommunityNew passes if |a-g| <= atol + rtol |g| for 99 % of the elements and
// no |a-g| is beyond the format's largest error: rtol, atol and largest are
// 2^-9, 2^-9, 0.1 for FP16; 2^-6, 2^-6, 1 for BF16; 2^-10, 2^-16 and 0.01 or 32
// units in the last place, whichever is more, for FP32. Not finite numbers and
// errors are as in CommunityOld.
func CommunityNew(f Format, got, golden []float64) (Community, error) {
	if err := community(f, f.RTol, got, golden); err != nil {
		return Community{}, err
	}
	c := Community{Passed: true, Worst: Worst{Index: -1}}
	within := 0
	for i, g := range golden {
		if !finite(g) || !finite(got[i]) {
			c.Passed = c.Passed && class(g) == class(got[i])
			within++
			continue
		}
		diff := math.Abs(got[i] - g)
		if diff <= f.ATol+f.RTol*math.Abs(g) {
			within++
		}
		c.Passed = c.Passed && (diff <= f.MaxError || diff <= f.MaxUlps*f.Ulp(g))
		c.Worst.offer(i, got[i], math.NaN(), g, diff)
		c.Error = max(c.Error, diff)
	}
	c.Within = 1
	if len(golden) > 0 {
		c.Within = float64(within) / float64(len(golden))
	}
	c.Passed = c.Passed && c.Within >= 0.99
	return c, nil
}

func community(f Format, threshold float64, got, golden []float64) error {
	if threshold == 0 {
		return argError("format", f.Name, "FP16, BF16 or FP32")
	}
	if len(got) != len(golden) {
		return argError("elements", fmt.Sprintf("%d, golden %d", len(got), len(golden)), "equally many")
	}
	return nil
}
