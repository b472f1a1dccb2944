package memory_test

import (
	"context"
	"errors"
	"testing"

	"symmem/driver/nccl/internal/gpu/gputest"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/scatter"
)

// TestMapAfterTimeoutReusesAddresses blocks the zeroing of the memory, so that Map times out, and
// then maps another segment at the same offset.
func TestMapAfterTimeoutReusesAddresses(t *testing.T) {
	g := gputest.Open(t)
	m := memory.New(g, scatter.New(0, 0, g.Granularity))
	arena, err := m.NewArena(g.Granularity)
	if err != nil {
		t.Fatal(err)
	}

	gputest.DelayInternalWork(t, g, func() {
		if _, err := arena.Map(0, g.Granularity); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Map = %v, want %v", err, context.DeadlineExceeded)
		}
	})
	segment, err := arena.Map(0, g.Granularity)
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(segment.Unmap(), arena.Close()); err != nil {
		t.Error(err)
	}
}

// TestResumeAfterTimeoutReusesAddresses is TestMapAfterTimeoutReusesAddresses for Resume.
func TestResumeAfterTimeoutReusesAddresses(t *testing.T) {
	g := gputest.Open(t)
	m := memory.New(g, scatter.New(0, 0, g.Granularity))
	arena, err := m.NewArena(g.Granularity)
	if err != nil {
		t.Fatal(err)
	}

	mapped, err := arena.Map(0, g.Granularity)
	if err != nil {
		t.Fatal(err)
	}

	segment := mapped.(*memory.Segment)
	if err := errors.Join(segment.PrepareSuspend(true), segment.Suspend()); err != nil {
		t.Fatal(err)
	}

	gputest.DelayInternalWork(t, g, func() {
		if err := segment.Resume(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Resume = %v, want %v", err, context.DeadlineExceeded)
		}
	})
	if err := segment.Resume(); err != nil {
		t.Errorf("Resume after the late zeros were written: %v", err)
	}

	if err := errors.Join(segment.Unmap(), arena.Close()); err != nil {
		t.Error(err)
	}
}
