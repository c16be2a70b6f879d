package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What is checked in is what this program writes.
func TestCheckedIn(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s differs: go run ./internal/asmgen", name)
		}
	}
}
