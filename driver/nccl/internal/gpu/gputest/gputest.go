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

// Main is the body of a package's TestMain. It runs the tests on the machine's GPUs. If there is no
// CUDA driver, it runs them on a software GPU (package softgpu), which it builds first.
func Main(m *testing.M) { os.Exit(run(m)) }

// run returns the exit code of the process.
func run(m *testing.M) int {
	if _, err := cuda.Load(); err != nil {
		library, _, err := softgpu.Build() // a libcuda and a libnccl
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}

		if err := os.Setenv(cuda.PathVariable, library); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}

	return m.Run()
}

// Open opens the first GPU, and drops it when the test ends.
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

// DelayInternalWork runs call while the GPU's internal work is blocked. Internal work runs on
// g.InternalStreams, and call waits for it up to g.Timeout. During call, this timeout is only a
// millisecond, so that the first wait times out. Afterwards, DelayInternalWork waits for the work.
func DelayInternalWork(t *testing.T, g *gpu.GPU, call func()) {
	t.Helper()
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA) // a word of memory that the stream reads
		if err != nil {
			return err
		}

		const open = 1
		defer gate.Set(open)
		stream, err := nextInternalStream(g)
		if err != nil {
			return err
		}

		// The stream runs no further work until the word equals open.
		err = g.CUDA.StreamWaitValue(stream, gate.Address(), open, cuda.WaitEqual)
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
	hasEnded := func() (bool, error) { return !g.MustKeepMemory(), nil }
	if err := gpu.PollQueryFor(endTimeout, hasEnded); err != nil {
		t.Fatal(err)
	}
}

// nextInternalStream returns the stream on which the next internal work will run. It runs work that
// does nothing: the next work uses the same stream again.
func nextInternalStream(g *gpu.GPU) (cuda.Stream, error) {
	var next cuda.Stream
	err := g.InternalStreams.Run(g, func(stream cuda.Stream) error {
		next = stream
		return nil
	})
	return next, err
}
