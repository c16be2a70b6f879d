package cpu

// machineTiers are the tiers of the machine, the best last: all of arm64 has NEON.
func machineTiers() []tier { return []tier{portable, neon} }
