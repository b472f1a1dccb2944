package stream

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

func TestHandleReturnsCUDAStream(t *testing.T) {
	var s driver.Stream = &Stream{CUDA: 0x77}
	native, ok := s.(driver.Native)
	if !ok || native.Handle() != 0x77 {
		t.Errorf("%T does not implement driver.Native with its CUDA stream as the handle", s)
	}
}

func TestAbandonedStreamRunsItsHostFunctions(t *testing.T) {
	t.Cleanup(func() { gpu.Stuck.Store(false) }) // the abandoned work completes in this test
	s, err := newStreams(t).NewStream()
	if err != nil {
		t.Fatal(err)
	}

	started, gate := make(chan struct{}), make(chan struct{})
	err = errors.Join(s.Host(func() { close(started); <-gate }), s.Host(func() {}))
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	<-started
	word := s.hostFuncWord
	s.Abandon()
	// The second function runs after Abandon and must not be counted on the new CUDA stream.
	release, done := make(chan struct{}), make(chan struct{})
	if err := s.Host(func() { <-release; close(done) }); err != nil {
		t.Fatal(err)
	}

	close(gate)
	if err := gpu.Poll(ctx, func() bool { return word.Value() == 2 }); err != nil {
		t.Fatalf("the second function did not signal the abandoned stream: %v", err)
	}

	if s.Idle() {
		t.Error("Idle() = true before the new stream's host function has returned")
	}

	close(release)
	<-done
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
