package random

import (
	"slices"

	"symmem"
)

// buffers holds the live buffers of a round. All ranks make the same random choices, so live[i] is
// the same allocation on every rank.
type buffers struct {
	choices *choices // the round's random generator
	streams []*symmem.Stream
	pools   []*symmem.Pool
	live    []liveBuffer // oldest first
	bytes   int64        // total size of the live buffers
}

type liveBuffer struct {
	pool   *symmem.Pool // nil for unregistered memory
	buffer symmem.Buffer
	bytes  int64
}

func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

const maxLiveBuffers = 64

// maxLiveBytes returns the limit of buffers.bytes for buffers of up to maxBytes. The last buffer
// may exceed it.
func maxLiveBytes(maxBytes int64) int64 { return 16 * maxBytes }

// isFull reports whether a limit has been reached.
func (bs *buffers) isFull() bool {
	return len(bs.live) >= maxLiveBuffers || bs.bytes >= maxLiveBytes(bs.choices.maxBytes)
}

func (bs *buffers) add(p *symmem.Pool, buffer symmem.Buffer) {
	bs.live = append(bs.live, liveBuffer{pool: p, buffer: buffer, bytes: buffer.Size()})
	bs.bytes += buffer.Size()
}

// allocateOrFree allocates a buffer of random size in a random pool on a random stream. If a limit
// has been reached, it frees one instead.
func (bs *buffers) allocateOrFree() error {
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

// allocateSeveral allocates n buffers of random sizes, or fewer if a limit is reached. alloc
// allocates from p or, if p is nil, unregistered memory.
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

// freeMatching frees the buffers for which match returns true, newest first.
func (bs *buffers) freeMatching(match func(liveBuffer) bool) error {
	for i, b := range slices.Backward(bs.live) { // freeAt(i) moves only later entries
		if !match(b) {
			continue
		}

		if err := bs.freeAt(i); err != nil {
			return err
		}
	}

	return nil
}

// drawBuffers draws n distinct live buffers, or nil if fewer are live.
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
