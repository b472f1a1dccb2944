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
		gate, err := g.Words.Take(g.CUDA) // a word of memory that the host and the GPU access
		if err != nil {
			return err
		}

		const open = 1
		defer gate.Set(open) // ends the abandoned work
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
			t.Error("MustKeepMemory = false while the abandoned work runs, want true")
		}

		written, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		defer g.Words.Put(written)
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.StreamWriteValue(stream, written.Address(), 1)
		})
		if got := written.Value(); got != 1 {
			t.Errorf("the word is %d after Run, want 1, which Run's work writes", got)
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
		const open, written = 1, 1 // values of the two words
		runErr := g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			// Run must still be waiting when the gate opens.
			time.AfterFunc(20*time.Millisecond, func() { gate.Set(open) })
			err := g.CUDA.StreamWaitValue(stream, gate.Address(), open, cuda.WaitEqual)
			if err != nil {
				return err
			}

			err = g.CUDA.StreamWriteValue(stream, done.Address(), written)
			if err != nil {
				return err
			}

			return errQueue
		})
		if done.Value() != written {
			t.Error("Run returned before its work had completed")
		}

		return runErr
	})
	if !errors.Is(err, errQueue) {
		t.Errorf("Run = %v, want %v", err, errQueue)
	}
}

// TestInternalStreamsDoNotWaitForEachOther calls Run while the function of another Run, which
// queues its work, waits. An NCCL call that waits for a stopped rank does the same. The later Run
// must return first.
func TestInternalStreamsDoNotWaitForEachOther(t *testing.T) {
	g := gputest.Open(t)
	isQueueing := make(chan struct{}) // closed when the first Run queues its work
	proceed := make(chan struct{})    // closed to let it continue
	ended := make(chan error, 2)      // results of the two Runs
	run := func(queue func()) {
		ended <- g.Do(func() error {
			return g.InternalStreams.Run(g, func(cuda.Stream) error {
				queue()
				return nil
			})
		})
	}
	go run(func() {
		close(isQueueing)
		<-proceed
	})
	<-isQueueing
	go run(func() {})
	select {
	case err := <-ended: // of the second Run
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
