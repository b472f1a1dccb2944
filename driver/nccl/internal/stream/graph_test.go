package stream

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
)

// TestWorkBeforeACaptureIsUnderWay asks a stream that captures for what it was given before: who
// takes it for done may take memory away from it.
func TestWorkBeforeACaptureIsUnderWay(t *testing.T) {
	s, err := alone(t).NewStream()
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := errors.Join(s.Host(func() { <-gate }), s.BeginCapture()); err != nil {
		t.Fatal(err)
	}
	if s.Idle() {
		t.Error("the stream is idle before its work has ended")
	}
	close(gate)
	if err := gpu.Poll(t.Context(), s.Idle); err != nil {
		t.Error(err)
	}
	g, err := s.EndCapture()
	if err == nil {
		err = g.Close()
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
}
