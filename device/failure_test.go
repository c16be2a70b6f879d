package device_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
)

// What explains a failure may ask the stream, and cannot lose it.
func TestExplainedFailure(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	first := errors.New("first")
	for name, explain := range map[string]func(s *device.Stream, err error) error{
		"asks":    func(s *device.Stream, err error) error { return errors.Join(s.Err(), errors.New("more")) },
		"fails":   func(s *device.Stream, err error) error { s.Fail(errors.New("second")); return err },
		"nothing": func(s *device.Stream, err error) error { return nil },
	} {
		s := device.NewStream(context.Background(), dev)
		s.OnFailure(func(err error) error { return explain(s, err) })
		s.Fail(first)
		if err := s.Err(); !errors.Is(err, first) {
			t.Errorf("%s: %v", name, err)
		}
		s.Release()
	}
}
