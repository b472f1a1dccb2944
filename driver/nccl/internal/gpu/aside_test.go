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

// TestAsideGivesUpWorkAtItsTimeout checks that Run returns at its timeout, that later work runs on
// another stream, and that memory stays mapped until the first work ends.
func TestAsideGivesUpWorkAtItsTimeout(t *testing.T) {
	g := gputest.Open(t)
	err := g.Do(func() error {
		never, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer never.Set(1)
		usual := g.Timeout
		g.Timeout = time.Millisecond
		err = g.Aside.Run(g, func(on cuda.Stream) error {
			return g.CUDA.StreamWaitValue(on, never.Address(), 1, cuda.WaitEqual)
		})
		g.Timeout = usual
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("work that does not end: %v", err)
		}
		if !g.Keeps() {
			t.Error("memory is freed while that work runs")
		}
		next, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer g.Words.Put(next)
		err = g.Aside.Run(g, func(on cuda.Stream) error {
			return g.CUDA.StreamWriteValue(on, next.Address(), 1)
		})
		if next.Value() != 1 {
			t.Error("the word was not written")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	ended := func() (bool, error) { return !g.Keeps(), nil }
	if err := gpu.Within(20*time.Second, ended); err != nil {
		t.Errorf("memory is kept after that work has ended: %v", err)
	}
}
