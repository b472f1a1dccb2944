package gpu_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/gpu/gputest"
	"symmem/internal/cuda"
)

func TestMain(m *testing.M) { gputest.Main(m) }

// TestInternalStreamAbandonsStreamAfterTimeout checks that Run returns after its timeout, that
// later work runs on another stream, and that memory stays mapped until the abandoned work
// completes.
func TestInternalStreamAbandonsStreamAfterTimeout(t *testing.T) {
	g := gputest.Open(t)
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer gate.Set(1)
		timeout := g.Timeout
		g.Timeout = time.Millisecond
		err = g.InternalStream.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.StreamWaitValue(stream, gate.Address(), 1, cuda.WaitEqual)
		})
		g.Timeout = timeout
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run with blocked work = %v, want %v", err, context.DeadlineExceeded)
		}
		if !g.MustKeepMemory() {
			t.Error("MustKeepMemory = false while the abandoned work runs")
		}
		next, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer g.Words.Put(next)
		err = g.InternalStream.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.StreamWriteValue(stream, next.Address(), 1)
		})
		if next.Value() != 1 {
			t.Error("Run returned before its work had completed")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	ended := func() (bool, error) { return !g.MustKeepMemory(), nil }
	if err := gpu.PollQueryFor(20*time.Second, ended); err != nil {
		t.Errorf("MustKeepMemory = true after the abandoned work should have completed: %v", err)
	}
}
