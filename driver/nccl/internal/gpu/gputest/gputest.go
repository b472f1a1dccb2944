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

// DelayInternalWork calls call in such a way that the first internal work of call (work that uses
// g.InternalStreams) times out. For that, it blocks the next internal stream and sets g.Timeout to
// a millisecond. After call, it undoes both and waits for the work.
func DelayInternalWork(t *testing.T, g *gpu.GPU, call func()) {
	t.Helper()
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA) // a word of memory for which the stream waits
		if err != nil {
			return err
		}

		const open = 1
		defer gate.Set(open)
		// Find the internal stream that will be used next: streams are reused, the last one first.
		var nextStream cuda.Stream
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			nextStream = stream
			return nil
		})
		if err != nil {
			return err
		}

		err = g.CUDA.StreamWaitValue(nextStream, gate.Address(), open, cuda.WaitEqual)
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
