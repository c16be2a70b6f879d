package main

import "golang.org/x/sys/cpu"

// The loops in assembly; see internal/asmgen.

//go:noescape
func peakF32AVX512(times int)

//go:noescape
func peakF32AVX2(times int)

//go:noescape
func peakBF16AVX512(times int)

// peaks are the loops for a tier: 24 vectors a turn, or 12 in AVX2.
func peaks(tier string) []peak {
	switch tier {
	case "avx512":
		p := []peak{{"fp32", 24 * 2 * 16, peakF32AVX512}}
		if cpu.X86.HasAVX512BF16 {
			p = append(p, peak{"bf16", 24 * 2 * 32, peakBF16AVX512})
		}
		return p
	case "avx2":
		return []peak{{"fp32", 12 * 2 * 8, peakF32AVX2}}
	}
	return []peak{{"fp32", 8 * 2, scalarPeak}}
}
