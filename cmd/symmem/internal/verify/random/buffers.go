package random

import (
	"slices"

	"symmem"
)

// buffers holds the live buffers of a round: those that are allocated and not yet freed. All ranks
// make the same random choices, so their lists have the same order. For example, if the second
// buffer is freed on rank 0, it is also freed on rank 1.
type buffers struct {
	choices *choices
	streams []*symmem.Stream // drawn from for allocations
	pools   []*symmem.Pool   // drawn from for allocations
	live    []liveBuffer     // oldest first
	bytes   int64            // total size of the live buffers
}

type liveBuffer struct {
	pool   *symmem.Pool // nil if the memory is not registered with any group
	buffer symmem.Buffer
	bytes  int64 // size of the buffer, which may be more than requested
}

// memory returns the memory of the whole buffer.
func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

// Limits of the live buffers. If one is reached, a round allocates no buffer until it has freed
// some. The last buffer may exceed the limit of the total size.
const (
	maxLiveBuffers  = 64 // number of buffers
	maxLiveMessages = 16 // total size, in multiples of choices.maxBytes
)

// isFull reports whether a limit has been reached.
func (bs *buffers) isFull() bool {
	return len(bs.live) >= maxLiveBuffers || bs.bytes >= maxLiveMessages*bs.choices.maxBytes
}

// add adds a new buffer to the live ones.
func (bs *buffers) add(p *symmem.Pool, buffer symmem.Buffer) {
	bs.live = append(bs.live, liveBuffer{pool: p, buffer: buffer, bytes: buffer.Size()})
	bs.bytes += buffer.Size()
}

// allocate allocates a buffer of random size in a random pool, for use on a random stream. If a
// limit has been reached, it frees a buffer instead.
func (bs *buffers) allocate() error {
	if bs.isFull() {
		return bs.freeRandom()
	}

	pool := choose(bs.choices, bs.pools)
	stream := choose(bs.choices, bs.streams)
	buffer, err := pool.AllocOn(stream, bs.choices.drawSize())
	if err != nil {
		return err
	}

	bs.add(pool, buffer)
	return nil
}

// allocateSeveral allocates n buffers of random sizes by calling alloc. It stops early if a limit
// is reached. p is the pool of the buffers, or nil if their memory is not registered with any
// group.
func (bs *buffers) allocateSeveral(
	n int, p *symmem.Pool, alloc func(bytes int64) (symmem.Buffer, error),
) error {
	for range n {
		if bs.isFull() {
			return nil
		}

		buffer, err := alloc(bs.choices.drawSize())
		if err != nil {
			return err
		}

		bs.add(p, buffer)
	}

	return nil
}

// freeRandom frees a random buffer, if there is one.
func (bs *buffers) freeRandom() error {
	if len(bs.live) == 0 {
		return nil
	}

	return bs.freeAt(bs.choices.IntN(len(bs.live)))
}

// freeAt frees bs.live[i] and removes it from the list, even if Free returns an error.
func (bs *buffers) freeAt(i int) error {
	freed := bs.live[i]
	bs.live = slices.Delete(bs.live, i, i+1)
	bs.bytes -= freed.bytes
	return freed.buffer.Free()
}

// freeMatching frees the live buffers for which match returns true, newest first.
func (bs *buffers) freeMatching(match func(liveBuffer) bool) error {
	for i := len(bs.live) - 1; i >= 0; i-- { // backwards, because freeAt moves later entries
		if !match(bs.live[i]) {
			continue
		}

		if err := bs.freeAt(i); err != nil {
			return err
		}
	}

	return nil
}

// drawBuffers draws n different live buffers. It returns nil if fewer are live.
func (bs *buffers) drawBuffers(n int) []liveBuffer {
	order := bs.choices.Perm(len(bs.live))
	if len(order) < n {
		return nil
	}

	var drawn []liveBuffer
	for _, i := range order[:n] {
		drawn = append(drawn, bs.live[i])
	}

	return drawn
}
