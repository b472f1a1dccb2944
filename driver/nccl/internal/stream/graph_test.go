package stream

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// A stream is busy while it has work that has not completed, and idle otherwise. These tests block
// a stream and query it while a stream is being captured: its new work is added to a graph instead
// of being executed. If a busy stream counted as idle, memory that its work uses could be unmapped.

// newBlockedStream returns a stream whose work does not complete before unblock is called.
func newBlockedStream(t *testing.T, streams *Streams) (s *Stream, unblock func()) {
	t.Helper()
	s, err := streams.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}

	return s, func() { close(gate) }
}

// TestStreamIsBusyDuringForeignCapture queries a busy stream and an event after its work while
// another library captures a stream that symmem has not adopted. In global mode, CUDA then refuses
// queries from every thread. A refused query must not count as idle.
func TestStreamIsBusyDuringForeignCapture(t *testing.T) {
	streams := newStreams(t)
	s, unblock := newBlockedStream(t, streams)
	event := streams.NewEvent()
	if err := s.Record(event); err != nil {
		t.Fatal(err)
	}

	g := streams.GPU
	for name, query := range map[string]func() bool{"Idle": s.Idle, "Done": event.Done} {
		g.Adopted.Store(false) // as if symmem had adopted no stream
		endCapture := beginForeignCapture(t, g)
		if query() {
			t.Errorf("%s() = true before the work has completed, want false", name)
		}

		endCapture()
	}

	unblock()
	if err := s.Synchronize(t.Context()); err != nil {
		t.Error(err)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// beginForeignCapture begins a capture in global mode on another thread, as another library would.
// It stops the test if that fails. The returned function ends the capture. It reports no error if
// a query has invalidated the capture.
func beginForeignCapture(t *testing.T, g *gpu.GPU) (endCapture func()) {
	t.Helper()
	begun := make(chan error)  // the result of BeginCapture
	end := make(chan struct{}) // closed to end the capture
	ended := make(chan error)  // the result of the whole goroutine
	go func() {                // ends after end is closed
		ended <- g.Do(func() error {
			stream, err := g.CUDA.StreamCreate()
			if err == nil {
				err = g.CUDA.BeginCapture(stream, cuda.CaptureGlobal)
			}

			begun <- err
			<-end
			_, _ = g.CUDA.EndCapture(stream) // fails if the capture is invalid
			return errors.Join(err, g.CUDA.StreamDestroy(stream))
		})
	}()
	if err := <-begun; err != nil {
		close(end)
		t.Fatal(errors.Join(err, <-ended))
	}

	return func() {
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestCapturingStreamIsBusyWithEarlierWork queries a stream that is being captured while its
// earlier work is still running. The stream must be busy until this work has completed.
func TestCapturingStreamIsBusyWithEarlierWork(t *testing.T) {
	s, unblock := newBlockedStream(t, newStreams(t))
	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}

	if s.Idle() {
		t.Error("Idle() = true before the stream's work has completed, want false")
	}

	unblock()
	if err := gpu.Poll(t.Context(), s.Idle); err != nil {
		t.Error(err)
	}

	g, err := s.EndCapture()
	if err == nil {
		err = g.Close()
	}

	if err != nil {
		t.Error(err)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
