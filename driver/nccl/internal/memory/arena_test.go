package memory_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/gpu/gputest"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/dl"
	"symmem/internal/scatter"
)

func TestMain(m *testing.M) { gputest.Main(m) }

// TestKeptMemoryOutlivesDevice uses segments after the device has dropped its reference to the
// context. Closing the last kept arena must release the context.
func TestKeptMemoryOutlivesDevice(t *testing.T) {
	g := gputest.Open(t)
	m := memory.New(g, scatter.New(0, 0, g.Granularity))
	arenas := [2]driver.Arena{}
	segments := [2]driver.Segment{}
	for i := range arenas {
		var err error
		if arenas[i], err = m.NewArena(4 * g.Granularity); err != nil {
			t.Fatal(err)
		}

		if segments[i], err = arenas[i].Map(0, g.Granularity); err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(segments[i].Keep(), arenas[i].Keep(g.Granularity)); err != nil {
			t.Fatal(err)
		}
	}

	if err := g.Drop(); err != nil {
		t.Fatal(err)
	}

	for i := range arenas {
		if got := writeAndRead(t, g, segments[i].Address()); got != 0xa5a5a5a5 {
			t.Errorf("segment %d contains %#x, want 0xa5a5a5a5", i, got)
		}

		if err := errors.Join(segments[i].Unmap(), arenas[i].Close()); err != nil {
			t.Error(err)
		}
	}

	if g.IsHeld() {
		t.Error("the context is still retained after the last arena has been closed")
	}
}

func writeAndRead(t *testing.T, g *gpu.GPU, address uintptr) (word uint32) {
	t.Helper()
	err := g.Do(func() error {
		s, err := g.CUDA.StreamCreate()
		if err != nil {
			return err
		}

		return errors.Join(g.CUDA.MemsetD8Async(address, 0xa5, 4, s),
			g.CUDA.MemcpyAsync(dl.AddressOf(&word), address, 4, s), g.CUDA.StreamSynchronize(s),
			g.CUDA.StreamDestroy(s))
	})
	runtime.KeepAlive(&word)
	if err != nil {
		t.Fatal(err)
	}

	return word
}
