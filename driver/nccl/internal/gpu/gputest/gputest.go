// Package gputest opens a GPU for tests of the backend's internal packages.
package gputest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/softgpu"
)

// Main runs the tests of a package. Without a CUDA driver, it builds and uses a software GPU.
func Main(m *testing.M) { os.Exit(run(m)) }

// run returns the exit code of the process.
func run(m *testing.M) int {
	if _, err := cuda.Load(); err != nil {
		libcuda, _, err := softgpu.Build() // without libnccl
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}

		if err := os.Setenv(cuda.PathVariable, libcuda); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}

	return m.Run()
}

// Open opens the first GPU until the end of the test.
func Open(t *testing.T) *gpu.GPU {
	t.Helper()
	library, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}

	device, err := library.Device(0)
	if err != nil {
		t.Fatal(err)
	}

	const workTimeout = time.Minute
	g, err := gpu.Open(library, device, workTimeout)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := g.Drop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// DelayInternalWork blocks an internal stream during call, so that the first InternalStreams.Run in
// call times out. DelayInternalWork then unblocks the stream and waits for its work.
func DelayInternalWork(t *testing.T, g *gpu.GPU, call func()) {
	t.Helper()
	err := g.Do(func() error {
		word, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}

		const unblocked = 1
		defer word.Set(unblocked)
		stream, err := nextInternalStream(g)
		if err != nil {
			return err
		}

		err = g.CUDA.StreamWaitValue(stream, word.Address(), unblocked, cuda.WaitEqual)
		if err != nil {
			return err
		}

		previousTimeout := g.Timeout
		defer func() { g.Timeout = previousTimeout }()
		g.Timeout = time.Millisecond
		call()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	const endTimeout = 20 * time.Second
	isIdle := func() (bool, error) { return !g.MustKeepMemory(), nil }
	if err := gpu.PollQueryFor(endTimeout, isIdle); err != nil {
		t.Fatal(err)
	}
}

// nextInternalStream returns the most recently used stream, which the next Run will take.
func nextInternalStream(g *gpu.GPU) (cuda.Stream, error) {
	var next cuda.Stream
	err := g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		next = stream
		return nil
	})
	return next, err
}
