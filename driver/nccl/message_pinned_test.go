package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// TestMessagesAfterCloseDuringForeignCapture closes groups while a stream that symmem does not
// know is being captured in CUDA's global mode. During that capture, CUDA refuses to unregister
// the host memory for messages. Later, CUDA would refuse to register memory at these addresses
// again, so later groups must not get the same addresses.
func TestMessagesAfterCloseDuringForeignCapture(t *testing.T) {
	p := openPair(t, 20*time.Second)
	exchange := func() {
		runBoth(t, func(r int) error {
			at := p[r].regions[0].segment.Address()
			err := p.message(r, []driver.Operation{driver.Send, driver.Recv}[r], at, 8, 0)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return errors.Join(err, p[r].stream.Synchronize(ctx))
		})
	}
	exchange()
	for r := range p {
		endCapture := beginForeignCapture(t, p[r].device.gpu)
		_ = p[r].group.Close() // returns CUDA's error
		endCapture()
	}

	runBoth(t, func(r int) error { return p.connect(t.Context(), r, "second") })
	exchange()
	for r := range p {
		err := errors.Join(p[r].group.Close(), p[r].stream.Close(), p[r].device.Close())
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// beginForeignCapture begins a capture on a stream that symmem does not know. The returned function
// ends the capture.
func beginForeignCapture(t *testing.T, g *gpu.GPU) (endCapture func()) {
	t.Helper()
	stream, err := gpu.Get(g, func() (s cuda.Stream, err error) {
		if s, err = g.CUDA.StreamCreate(); err != nil {
			return s, err
		}

		return s, g.CUDA.BeginCapture(s, cuda.CaptureGlobal)
	})
	if err != nil {
		t.Fatal(err)
	}

	return func() {
		_ = g.Do(func() error { // the calls during the capture have invalidated it
			_, err := g.CUDA.EndCapture(stream)
			return errors.Join(err, g.CUDA.StreamDestroy(stream))
		})
	}
}
