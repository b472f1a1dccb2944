package random

import (
	"slices"

	"symmem"
)

const (
	maxLiveBuffers = 64
	// maxLiveMessages is the maximum size of all live buffers, as a multiple of the maximum message
	// size.
	maxLiveMessages = 16
)

type buffers struct {
	draws   *draws
	streams []*symmem.Stream
	pools   []*symmem.Pool
	live    []liveBuffer
	bytes   int64 // total size of live
}

type liveBuffer struct {
	pool   *symmem.Pool // nil for local memory
	buffer symmem.Buffer
	bytes  int64
}

// memory returns the memory of the buffer without padding.
func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

// allocate allocates a random buffer. If a limit has been reached, it frees a buffer instead.
func (b *buffers) allocate() error {
	if b.full() {
		return b.free()
	}
	p := choose(b.draws, b.pools)
	return b.keep(p)(p.AllocOn(choose(b.draws, b.streams), b.draws.size()))
}

func (b *buffers) full() bool {
	return len(b.live) >= maxLiveBuffers || b.bytes >= maxLiveMessages*b.draws.maxBytes
}

// keep returns a function that takes the results of an allocation from p. The function adds the
// buffer to b.live, or returns the error.
func (b *buffers) keep(p *symmem.Pool) func(symmem.Buffer, error) error {
	return func(buffer symmem.Buffer, err error) error {
		if err != nil {
			return err
		}
		b.live = append(b.live, liveBuffer{p, buffer, buffer.Size()})
		b.bytes += buffer.Size()
		return nil
	}
}

// allocateSeveral allocates n buffers, or fewer if the limits are reached.
func (b *buffers) allocateSeveral(
	n int, p *symmem.Pool, alloc func(int64) (symmem.Buffer, error),
) error {
	for range n {
		if b.full() {
			return nil
		}
		if err := b.keep(p)(alloc(b.draws.size())); err != nil {
			return err
		}
	}
	return nil
}

func (b *buffers) free() error {
	if len(b.live) == 0 {
		return nil
	}
	return b.drop(b.draws.IntN(len(b.live)))
}

func (b *buffers) drop(i int) error {
	dropped := b.live[i]
	b.live = slices.Delete(b.live, i, i+1)
	b.bytes -= dropped.bytes
	return dropped.buffer.Free()
}

// dropIf frees the live buffers for which match returns true, newest first.
func (b *buffers) dropIf(match func(liveBuffer) bool) error {
	for i := len(b.live) - 1; i >= 0; i-- {
		if match(b.live[i]) {
			if err := b.drop(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// pick draws n different live buffers, or returns nil if there are too few.
func (b *buffers) pick(n int) []liveBuffer {
	order := b.draws.Perm(len(b.live))
	if len(order) < n {
		return nil
	}
	var picked []liveBuffer
	for _, i := range order[:n] {
		picked = append(picked, b.live[i])
	}
	return picked
}
