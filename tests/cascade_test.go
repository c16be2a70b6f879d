package tests

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/internal/cascade"
	"github.com/lamina-go/lamina/precision"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// The cascade of the operator's published test at its shapes and others: every
// output and every gradient at level L2, each by the thresholds of the dtype it
// is stored in, the caches by the project's own bar, and 99.9 % of all 16-bit
// numbers the rounded float64 answer.
func TestCascade(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	var list []cascade.Case
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		c := cascade.Case{B: 2, T: 4096, N: 25, D: 512, DType: d, Scale: 1, RMSNorm: true, Partial: true, Ones: true, Seed: 42, Memory: 4 << 30}
		add := func(change func(c *cascade.Case)) {
			with := c
			change(&with)
			list = append(list, with)
		}
		add(func(c *cascade.Case) {})
		add(func(c *cascade.Case) { c.B, c.T, c.N, c.Memory = 1, 1023, 32, 0 })
		add(func(c *cascade.Case) { c.B, c.T = 1, 1024 })
		add(func(c *cascade.Case) { c.B, c.T, c.Scale, c.Ones = 1, 1024, -0.7, false })
		add(func(c *cascade.Case) {
			c.B, c.T, c.N, c.D, c.Scale, c.Ones, c.Partial = 1, 255, 7, 129, 3, false, false
		})
		add(func(c *cascade.Case) { c.T, c.N, c.D, c.RMSNorm = 129, 5, 65, false })
	}
	for _, c := range list {
		if testing.Short() {
			c.T = min(c.T, 65)
		}
		t.Run(c.String(), func(t *testing.T) {
			results, err := c.Run(context.Background(), dev, nil)
			if err != nil {
				t.Fatal(err)
			}
			var ulps precision.Histogram
			for _, r := range results {
				if s := r.Failure(precision.L2); s != "" {
					t.Error(s)
				}
				limit, cache := map[string]float64{"rms_cache": 2e-7, "alpha_cache": 4e-6}[r.Output]
				if cache && !(r.Kernel.MARE <= limit && (r.WorstSmall.Index < 0 || r.WorstSmall.Error <= limit)) {
					t.Errorf("%s is off by %v relative, %v at small values; want %v", r.Output, r.Kernel.MARE, r.WorstSmall, limit)
				}
				if !cache {
					ulps = ulps.Add(r.Ulps)
				}
			}
			if float64(ulps.Zero) < 0.999*float64(ulps.All()) || float64(ulps.Two+ulps.More) > 1e-5*float64(ulps.All()) {
				t.Errorf("distances from the rounded golden, in ulps: %+v", ulps)
			}
			var table strings.Builder
			if err := precision.Table(&table, precision.L2, results...); err != nil {
				t.Error(err)
			}
			t.Logf("%sulps: %+v", table.String(), ulps)
		})
	}
	if gib := peakMemory(); gib > 0 {
		t.Logf("peak memory of the process: %.1f GiB", gib)
		if gib >= 16 {
			t.Errorf("peak memory %.1f GiB, want less than 16", gib)
		}
	}
}

// peakMemory is the largest resident size of the process in GiB; 0 where the system does not tell.
func peakMemory() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			return kb / (1 << 20)
		}
	}
	return 0
}

// noise is a host tensor of normal numbers times a factor, made by index.
func noise(t *testing.T, d tensor.DType, seed, stream uint64, factor float64, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(d, shape...)
	if err != nil {
		t.Fatal(err)
	}
	src := random.Source{Seed: seed, Stream: stream}
	v := make([]float64, x.Len())
	for i := range v {
		v[i] = factor * src.Normal(uint64(i))
	}
	if err := x.SetFloat64s(v); err != nil {
		t.Fatal(err)
	}
	return x
}
