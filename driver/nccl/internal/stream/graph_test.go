package stream

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
)

// TestCapturingStreamIsBusyWithEarlierWork queries a stream during a capture while earlier work
// is still running. If the stream counted as idle, the memory that the earlier work uses could be
// unmapped.
func TestCapturingStreamIsBusyWithEarlierWork(t *testing.T) {
	s, err := newStreams(t).NewStream()
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := errors.Join(s.Host(func() { <-gate }), s.BeginCapture()); err != nil {
		t.Fatal(err)
	}
	if s.Idle() {
		t.Error("Idle() = true before the stream's work has completed")
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
