package stream

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

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

// A stream counts as busy if CUDA refuses to query it because another library captures another
// stream in global mode. Otherwise, symmem could unmap memory that the stream uses.
func TestStreamIsBusyDuringForeignCapture(t *testing.T) {
	streams := newStreams(t)
	s, unblock := newBlockedStream(t, streams)
	event := streams.NewEvent()
	if err := s.Record(event); err != nil {
		t.Fatal(err)
	}

	g := streams.GPU
	for name, query := range map[string]func() bool{"Idle": s.Idle, "Done": event.Done} {
		g.Relaxed.Store(false) // so that CUDA refuses this query, too
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
func beginForeignCapture(t *testing.T, g *gpu.GPU) (endCapture func()) {
	t.Helper()
	begun := make(chan error)
	end := make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- g.Do(func() error {
			stream, err := g.CUDA.StreamCreate()
			if err == nil {
				err = g.CUDA.BeginCapture(stream, cuda.CaptureGlobal)
			}

			begun <- err
			<-end
			_, _ = g.CUDA.EndCapture(stream) // fails if a query has invalidated the capture
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

// A stream that is being captured stays busy until the work before the capture has completed.
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
