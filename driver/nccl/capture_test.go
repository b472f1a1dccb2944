package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestWorkBeforeACaptureIsUnderWay asks a stream that captures for what it was given before: who
// takes it for done may take memory away from it.
func TestWorkBeforeACaptureIsUnderWay(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	made, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s, gate := made.(*stream), make(chan struct{})
	if err := errors.Join(s.Host(func() { <-gate }), s.BeginCapture()); err != nil {
		t.Fatal(err)
	}
	if s.idle() {
		t.Error("the stream is idle before its work has ended")
	}
	close(gate)
	if err := poll(t.Context(), s.idle); err != nil {
		t.Error(err)
	}
	g, err := s.EndCapture()
	if err == nil {
		err = g.Close()
	}
	if err := errors.Join(err, s.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}
