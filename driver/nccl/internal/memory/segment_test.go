package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/gpu/gputest"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/cuda"
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
	delayInternalWork(t, g, func() {
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
	delayInternalWork(t, g, func() {
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

// delayInternalWork calls call, whose first internal work times out, and then waits for that work.
func delayInternalWork(t *testing.T, g *gpu.GPU, call func()) {
	t.Helper()
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer gate.Set(1)
		var idle cuda.Stream // the next to be used
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error { idle = stream; return nil })
		if err == nil {
			err = g.CUDA.StreamWaitValue(idle, gate.Address(), 1, cuda.WaitEqual)
		}
		if err != nil {
			return err
		}
		timeout := g.Timeout
		defer func() { g.Timeout = timeout }()
		g.Timeout = time.Millisecond
		call()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := func() (bool, error) { return !g.MustKeepMemory(), nil }
	if err := gpu.PollQueryFor(20*time.Second, ended); err != nil {
		t.Fatal(err)
	}
}
