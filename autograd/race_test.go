//go:build race

package autograd_test

func init() { raceDetector = true }
