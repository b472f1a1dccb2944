package random

import (
	"slices"

	"symmem"
)

// Limits of the live buffers: above them, a round allocates no further buffer.
const (
	maxLiveBuffers  = 64 // number of buffers
	maxLiveMessages = 16 // total size, in messages of the maximum size (choices.maxBytes)
)

// buffers allocates and frees the buffers of a round. All ranks make the same random choices.
type buffers struct {
	choices *choices
	streams []*symmem.Stream // drawn from for allocations
	pools   []*symmem.Pool   // drawn from for allocations
	live    []liveBuffer     // allocated and not yet freed, oldest first
	bytes   int64            // total size of the live buffers
}

type liveBuffer struct {
	pool   *symmem.Pool // nil if the memory is outside windows
	buffer symmem.Buffer
	bytes  int64 // size of the buffer
}

func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

// allocate allocates a buffer of random size in a random pool, for use on a random stream. If a
// limit has been reached, it frees a buffer instead.
func (b *buffers) allocate() error {
	if b.isFull() {
		return b.freeRandom()
	}
	pool := choose(b.choices, b.pools)
	stream := choose(b.choices, b.streams)
	buffer, err := pool.AllocOn(stream, b.choices.drawSize())
	if err != nil {
		return err
	}
	b.add(pool, buffer)
	return nil
}

func (b *buffers) isFull() bool {
	return len(b.live) >= maxLiveBuffers || b.bytes >= maxLiveMessages*b.choices.maxBytes
}

func (b *buffers) add(p *symmem.Pool, buffer symmem.Buffer) {
	b.live = append(b.live, liveBuffer{pool: p, buffer: buffer, bytes: buffer.Size()})
	b.bytes += buffer.Size()
}

// allocateSeveral allocates n buffers of random sizes with alloc, or fewer if a limit is reached.
// p is the pool from which alloc allocates, or nil if it allocates memory outside windows.
func (b *buffers) allocateSeveral(
	n int, p *symmem.Pool, alloc func(int64) (symmem.Buffer, error),
) error {
	for range n {
		if b.isFull() {
			return nil
		}
		buffer, err := alloc(b.choices.drawSize())
		if err != nil {
			return err
		}
		b.add(p, buffer)
	}
	return nil
}

func (b *buffers) freeRandom() error {
	if len(b.live) == 0 {
		return nil
	}
	return b.freeAt(b.choices.IntN(len(b.live)))
}

// freeAt frees the live buffer at index i and removes it from b.live, even with an error.
func (b *buffers) freeAt(i int) error {
	freed := b.live[i]
	b.live = slices.Delete(b.live, i, i+1)
	b.bytes -= freed.bytes
	return freed.buffer.Free()
}

// freeMatching frees the live buffers for which match returns true, newest first.
func (b *buffers) freeMatching(match func(liveBuffer) bool) error {
	for i := len(b.live) - 1; i >= 0; i-- {
		if match(b.live[i]) {
			if err := b.freeAt(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// drawBuffers draws n different live buffers, or returns nil if fewer are live.
func (b *buffers) drawBuffers(n int) []liveBuffer {
	order := b.choices.Perm(len(b.live))
	if len(order) < n {
		return nil
	}
	var drawn []liveBuffer
	for _, i := range order[:n] {
		drawn = append(drawn, b.live[i])
	}
	return drawn
}
