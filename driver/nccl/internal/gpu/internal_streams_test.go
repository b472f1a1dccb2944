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

// TestInternalStreamsAbandonAStreamAfterTimeout checks that Run returns after its timeout, that
// later work runs on another stream, and that memory stays mapped until the abandoned work
// completes.
func TestInternalStreamsAbandonAStreamAfterTimeout(t *testing.T) {
	g := gputest.Open(t)
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		const open = 1
		defer gate.Set(open)
		timeout := g.Timeout
		g.Timeout = time.Millisecond
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.StreamWaitValue(stream, gate.Address(), open, cuda.WaitEqual)
		})
		g.Timeout = timeout
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run with blocked work = %v, want %v", err, context.DeadlineExceeded)
		}
		if !g.MustKeepMemory() {
			t.Error("MustKeepMemory = false while the abandoned work runs")
		}
		written, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer g.Words.Put(written)
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.StreamWriteValue(stream, written.Address(), 1)
		})
		if written.Value() != 1 {
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

// TestInternalStreamsAwaitWorkAfterAnError calls Run with a function that queues work and returns
// an error. The caller may free the memory that the work uses, so Run must wait for the work.
func TestInternalStreamsAwaitWorkAfterAnError(t *testing.T) {
	g := gputest.Open(t)
	errQueue := errors.New("queueing failed")
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		done, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer g.Words.Put(gate, done)
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			time.AfterFunc(20*time.Millisecond, func() { gate.Set(1) })
			return errors.Join(errQueue,
				g.CUDA.StreamWaitValue(stream, gate.Address(), 1, cuda.WaitEqual),
				g.CUDA.StreamWriteValue(stream, done.Address(), 1))
		})
		if done.Value() != 1 {
			t.Error("Run returned before its work had completed")
		}
		return err
	})
	if !errors.Is(err, errQueue) {
		t.Errorf("Run = %v, want %v", err, errQueue)
	}
}

// TestInternalStreamsDoNotWaitForEachOther calls Run while the queue function of another Run
// waits, like an NCCL call that waits for a stopped rank.
func TestInternalStreamsDoNotWaitForEachOther(t *testing.T) {
	g := gputest.Open(t)
	queueing, proceed := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 2) // results of the two Runs
	run := func(queue func()) {
		ended <- g.Do(func() error {
			return g.InternalStreams.Run(g, func(cuda.Stream) error { queue(); return nil })
		})
	}
	go run(func() { close(queueing); <-proceed })
	<-queueing
	go run(func() {})
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Run waits for the queue function of another Run")
	}
	close(proceed)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
