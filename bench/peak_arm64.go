package main

//go:noescape
func peakF32NEON(times int)

// peaks are the loops for a tier: 24 vectors a turn in NEON.
func peaks(tier string) []peak {
	if tier == "neon" {
		return []peak{{"fp32", 24 * 2 * 4, peakF32NEON}}
	}
	return []peak{{"fp32", 8 * 2, scalarPeak}}
}
