package main

import (
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/lamina-go/lamina/device/cpu"
)

// processor is the name the processor gives itself, where the system tells.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // of Linux; elsewhere it is unknown
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

func middle(x []float64) float64 {
	slices.Sort(x)
	n := len(x)
	return (x[(n-1)/2] + x[n/2]) / 2
}

// parallel runs f on every thread and waits.
func (b *bench) parallel(f func(thread int)) {
	var wg sync.WaitGroup
	for i := range b.threads {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// bandwidthBytes is far more than any cache holds.
const bandwidthBytes = 512 << 20

// machine measures what bounds every kernel: how fast memory is read and
// copied, and how fast the units multiply and add. Every other figure's limit
// comes from these, so they are always measured.
func (b *bench) machine() {
	n := bandwidthBytes / 8
	from, to := make([]uint64, n), make([]uint64, n)
	part := func(x []uint64, i int) []uint64 { return x[i*n/b.threads : (i+1)*n/b.threads] }
	b.parallel(func(i int) { // pages of their own
		for k := range part(from, i) {
			part(from, i)[k], part(to, i)[k] = uint64(k), 1
		}
	})
	sums := make([]uint64, b.threads)
	b.read = bandwidthBytes / b.median(func() error {
		b.parallel(func(i int) { sums[i] += sum(part(from, i)) })
		return nil
	})
	b.copy = 2 * bandwidthBytes / b.median(func() error {
		b.parallel(func(i int) { copy(part(to, i), part(from, i)) })
		return nil
	})
	b.report(figure{Name: "read_bandwidth", Value: b.read / 1e9, Unit: "GB/s"})
	b.report(figure{Name: "copy_bandwidth", Value: b.copy / 1e9, Unit: "GB/s"})
	b.peak = map[string]float64{}
	for _, p := range peaks(cpu.Tier()) {
		const times = 1 << 20
		seconds := b.median(func() error {
			b.parallel(func(int) { p.run(times) })
			return nil
		})
		b.peak[p.dtype] = float64(b.threads) * times * p.flops / seconds
		b.report(figure{Name: "peak/" + p.dtype, Value: b.peak[p.dtype] / 1e9, Unit: "GFLOP/s"})
	}
}

// sum reads x in eight strands, so that no addition waits for the one before.
func sum(x []uint64) uint64 {
	var s [8]uint64
	for ; len(x) >= 8; x = x[8:] {
		s[0] += x[0]
		s[1] += x[1]
		s[2] += x[2]
		s[3] += x[3]
		s[4] += x[4]
		s[5] += x[5]
		s[6] += x[6]
		s[7] += x[7]
	}
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]
}

// peak is a loop of independent multiply-adds on registers.
type peak struct {
	dtype string
	flops float64 // of one turn
	run   func(times int)
}

// scalarPeak is the peak of code without vectors.
func scalarPeak(times int) {
	x := [8]float32{1, 2, 3, 4, 5, 6, 7, 8}
	for range times {
		for i := range x {
			x[i] = x[i]*0.5 + 1
		}
	}
	keep(x[0] + x[7])
}

//go:noinline
func keep(float32) {}
