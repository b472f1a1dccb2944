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

// failAfter limits waits that usually take milliseconds.
const failAfter = 20 * time.Second

const (
	open    = 1 // a stream waits until its gate, a word that is initially 0, has this value
	written = 1 // value that work writes to a word, initially 0
)

// After a timeout, later work runs on another stream, and memory stays mapped until the abandoned
// work has completed.
func TestInternalStreamsAbandonAStreamAfterTimeout(t *testing.T) {
	g := gputest.Open(t)
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}

		defer gate.Set(open)
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
	if err := gpu.PollQueryFor(failAfter, hasEnded); err != nil {
		t.Errorf("MustKeepMemory = true after the abandoned work should have completed: %v", err)
	}
}

// runBlocked calls Run with a short timeout for work that waits for the gate.
func runBlocked(g *gpu.GPU, gate *gpu.Word) error {
	previousTimeout := g.Timeout
	defer func() { g.Timeout = previousTimeout }()
	g.Timeout = time.Millisecond
	return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.StreamWaitValue(stream, gate.Address(), open, cuda.WaitEqual)
	})
}

// checkRunWrites checks that Run executes work and waits for it.
func checkRunWrites(t *testing.T, g *gpu.GPU) error {
	t.Helper()
	word, err := g.Words.Take(g.CUDA)
	if err != nil {
		return err
	}
	defer g.Words.Put(word)
	err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		return g.CUDA.StreamWriteValue(stream, word.Address(), written)
	})
	if got := word.Value(); got != written {
		t.Errorf("after Run, the word is %d, want %d", got, written)
	}

	return err
}

// Run waits for queued work even if the queue function fails, because callers may then free memory.
func TestInternalStreamsAwaitWorkAfterAnError(t *testing.T) {
	g := gputest.Open(t)
	errQueue := errors.New("queue function failed")
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
		runErr := g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			// Open the gate only after Run has begun to wait.
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

// A queue function that blocks, for example in NCCL, does not delay other Runs.
func TestInternalStreamsDoNotWaitForEachOther(t *testing.T) {
	g := gputest.Open(t)
	queueing := make(chan struct{})
	proceed := make(chan struct{})
	results := make(chan error, 2) // one for each Run
	run := func(queue func(cuda.Stream) error) {
		results <- g.Do(func() error { return g.InternalStreams.Run(g, queue) })
	}
	go run(func(cuda.Stream) error {
		close(queueing)
		<-proceed
		return nil
	})
	<-queueing
	go run(func(cuda.Stream) error { return nil })
	select {
	case err := <-results: // of the second Run
		if err != nil {
			t.Error(err)
		}
	case <-time.After(failAfter):
		t.Error("Run waits for the queue function of another Run")
	}

	close(proceed)
	if err := <-results; err != nil {
		t.Error(err)
	}
}
