package cpu

import "golang.org/x/sys/cpu"

// machineTiers are the tiers of the machine, the best last.
func machineTiers() []tier {
	t := []tier{portable}
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA {
		t = append(t, avx2)
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
			t = append(t, avx512)
		}
	}
	return t
}

// hasAVX512BF16: dot products of pairs of bfloat16.
var hasAVX512BF16 = cpu.X86.HasAVX512BF16
