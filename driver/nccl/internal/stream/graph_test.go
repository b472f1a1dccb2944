package stream

import (
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// TestStreamIsBusyDuringForeignCapture queries a stream and an event while another library is
// capturing in global mode on a stream that symmem has not adopted. CUDA then refuses queries
// from every thread.
func TestStreamIsBusyDuringForeignCapture(t *testing.T) {
	streams := newStreams(t)
	s, err := streams.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	gate, event := make(chan struct{}), streams.NewEvent()
	if err := errors.Join(s.Host(func() { <-gate }), s.Record(event)); err != nil {
		t.Fatal(err)
	}
	g := streams.GPU
	for i, query := range []func() bool{s.Idle, event.Done} {
		g.Adopted.Store(false)
		endCapture := beginForeignCapture(t, g)
		if query() {
			t.Errorf("query %d: true before the work has completed", i)
		}
		endCapture()
	}
	close(gate)
	if err := errors.Join(s.Synchronize(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

// beginForeignCapture begins a capture in global mode on another thread. The returned function ends
// the capture, without an error if it has been invalidated.
func beginForeignCapture(t *testing.T, g *gpu.GPU) (endCapture func()) {
	t.Helper()
	begun, end, ended := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		ended <- g.Do(func() error {
			stream, err := g.CUDA.StreamCreate()
			if err == nil {
				err = g.CUDA.BeginCapture(stream, cuda.CaptureGlobal)
			}
			begun <- err
			<-end
			_, _ = g.CUDA.EndCapture(stream)
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
