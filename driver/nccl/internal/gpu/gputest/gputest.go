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

// Main is the body of a package's TestMain. It runs the tests on the machine's GPUs or, if there
// is no CUDA driver, on the software GPU.
func Main(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := cuda.Load(); err != nil {
		library, _, err := softgpu.Build()
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

// DelayInternalWork calls call while the next internal stream is blocked and g.Timeout is a
// millisecond, so that call's first internal work times out. It then unblocks the stream and waits
// for the work.
func DelayInternalWork(t *testing.T, g *gpu.GPU, call func()) {
	t.Helper()
	err := g.Do(func() error {
		gate, err := g.Words.Take(g.CUDA)
		if err != nil {
			return err
		}
		const open = 1
		defer gate.Set(open)
		var idle cuda.Stream // the internal stream that will be used next
		err = g.InternalStreams.Run(g, func(stream cuda.Stream) error { idle = stream; return nil })
		if err == nil {
			err = g.CUDA.StreamWaitValue(idle, gate.Address(), open, cuda.WaitEqual)
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
