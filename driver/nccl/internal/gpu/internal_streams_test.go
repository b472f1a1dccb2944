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

// InternalStreams.Run takes a stream, calls a function that queues work on it, and waits until the
// work has completed. For example, the work of a Run waits until a word (4 bytes of memory that the
// host and the GPU access) has the value 1. The test blocks the work as long as it wants, and then
// sets the word, which it calls the gate, to open.

// open is the value of an open gate. Before, a gate has the value 0.
const open = 1

// TestInternalStreamsAbandonAStreamAfterTimeout blocks the work of a Run for longer than the GPU's
// timeout. Run must return, later work must run on another stream, and memory must stay mapped
// until the abandoned work has completed.
func TestInternalStreamsAbandonAStreamAfterTimeout(t *testing.T) {
	g := gputest.Open(t)
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}

		defer gate.Set(open) // ends the abandoned work
		if err := runBlocked(g, gate); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run with blocked work = %v, want %v", err, context.DeadlineExceeded)
		}

		if !g.MustKeepMemory() {
			t.Error("MustKeepMemory = false while the abandoned work runs, want true")
		}

		return checkRunWrites(t, g)
	})
	if err != nil {
		t.Error(err)
	}

	hasEnded := func() (bool, error) { return !g.MustKeepMemory(), nil }
	if err := gpu.PollQueryFor(20*time.Second, hasEnded); err != nil {
		t.Errorf("MustKeepMemory = true after the abandoned work should have completed: %v", err)
	}
}

// runBlocked returns the error of a Run whose work waits for the gate. The timeout is 1 ms.
func runBlocked(g *gpu.GPU, gate *gpu.Word) error {
	timeout := g.Timeout
	g.Timeout = time.Millisecond
	err := g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.StreamWaitValue(stream, gate.Address(), open, cuda.WaitEqual)
	})
	g.Timeout = timeout
	return err
}

// checkRunWrites checks that the work of a Run writes to a word before Run returns.
func checkRunWrites(t *testing.T, g *gpu.GPU) error {
	t.Helper()
	word, err := g.Words.Take(g.CUDA)
	if err != nil {
		return err
	}
	defer g.Words.Put(word)
	const written = 1
	err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.StreamWriteValue(stream, word.Address(), written)
	})
	if got := word.Value(); got != written {
		t.Errorf("the word is %d after Run, want %d, which Run's work writes", got, written)
	}

	return err
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

		done, err := g.Words.Take(g.CUDA) // written at the end of the work
		if err != nil {
			return err
		}
		defer g.Words.Put(gate, done)
		const written = 1
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

// TestInternalStreamsDoNotWaitForEachOther calls Run while another Run still queues its work. The
// second Run must not wait for the first, which may take long: an NCCL call that queues work can
// wait for a rank that has stopped.
func TestInternalStreamsDoNotWaitForEachOther(t *testing.T) {
	g := gputest.Open(t)
	isQueueing := make(chan struct{}) // closed when the first Run queues its work
	proceed := make(chan struct{})    // closed to let the first Run continue
	ended := make(chan error, 2)      // results of the two Runs, in the order of their ends
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
