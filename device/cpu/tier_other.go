//go:build !amd64

package cpu

func machineTiers() []tier { return []tier{portable} }
