package stream

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

func TestWorkOnAHandleIsTheStreamsOwn(t *testing.T) {
	var s driver.Stream = &Stream{CUDA: 0x77}
	native, ok := s.(driver.Native)
	if !ok || native.Handle() != 0x77 {
		t.Errorf("%T has no handle of its own", s)
	}
}

func TestHostFunctionsOfAStreamThatWasGivenUpGoOn(t *testing.T) {
	t.Cleanup(func() { gpu.Stuck.Store(false) }) // since what is given up here ends
	s, err := alone(t).NewStream()
	if err != nil {
		t.Fatal(err)
	}
	begun, gate := make(chan struct{}), make(chan struct{})
	err = errors.Join(s.Host(func() { close(begun); <-gate }), s.Host(func() {}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	<-begun
	word := s.word
	s.Abandon()
	// The second function comes late, and must not count as one of the new stream's.
	hold, ran := make(chan struct{}), make(chan struct{})
	if err := s.Host(func() { <-hold; close(ran) }); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if err := gpu.Poll(ctx, func() bool { return word.Value() == 2 }); err != nil {
		t.Fatalf("the second function has not ended where it was queued: %v", err)
	}
	if s.Idle() {
		t.Error("the new stream has passed a function that has not ended")
	}
	close(hold)
	<-ran
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
