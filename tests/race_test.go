//go:build race

package tests

func init() { raceDetector = true }
