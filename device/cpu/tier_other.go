//go:build !amd64 && !arm64

package cpu

func machineTiers() []tier { return []tier{portable} }
