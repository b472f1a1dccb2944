package random

import (
	"slices"

	"symmem"
)

// Limits on live memory: liveBuffers is the maximum number of buffers, and liveMessages is their
// maximum total size as a multiple of the maximum message size.
const (
	liveBuffers  = 64
	liveMessages = 16
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

// memory returns the buffer without its padding.
func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

// allocate allocates a random buffer. If a limit on live memory is reached, it frees one
// instead.
func (b *buffers) allocate() error {
	if b.full() {
		return b.free()
	}
	p := choose(b.draws, b.pools)
	return b.keep(p)(p.AllocOn(choose(b.draws, b.streams), b.draws.size()))
}

func (b *buffers) full() bool {
	return len(b.live) >= liveBuffers || b.bytes >= liveMessages*b.draws.maxBytes
}

// keep returns a function to be called with the results of an allocation from p. The function
// adds the buffer to b.live, or returns the allocation's error.
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
	h := b.live[i]
	b.live = slices.Delete(b.live, i, i+1)
	b.bytes -= h.bytes
	return h.buffer.Free()
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

// pick draws n distinct live buffers, or returns nil if there are fewer than n.
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
