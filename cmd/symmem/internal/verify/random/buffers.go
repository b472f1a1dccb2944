package random

import (
	"slices"

	"symmem"
)

const (
	maxLiveBuffers = 64
	// maxLiveMessages * choices.maxBytes is the maximum size of all live buffers.
	maxLiveMessages = 16
)

type buffers struct {
	choices *choices
	streams []*symmem.Stream
	pools   []*symmem.Pool
	live    []liveBuffer
	bytes   int64 // of the live buffers
}

type liveBuffer struct {
	pool   *symmem.Pool // nil for local memory
	buffer symmem.Buffer
	bytes  int64
}

func (b liveBuffer) memory() (symmem.Memory, error) { return b.buffer.Memory().Slice(0, b.bytes) }

// allocate allocates a random buffer. If a limit has been reached, it frees a buffer instead.
func (b *buffers) allocate() error {
	if b.isFull() {
		return b.freeRandom()
	}
	p := choose(b.choices, b.pools)
	return b.addResult(p)(p.AllocOn(choose(b.choices, b.streams), b.choices.drawSize()))
}

func (b *buffers) isFull() bool {
	return len(b.live) >= maxLiveBuffers || b.bytes >= maxLiveMessages*b.choices.maxBytes
}

// addResult returns a function that adds the buffer from an allocation in p, or returns the error.
func (b *buffers) addResult(p *symmem.Pool) func(symmem.Buffer, error) error {
	return func(buffer symmem.Buffer, err error) error {
		if err != nil {
			return err
		}
		b.live = append(b.live, liveBuffer{p, buffer, buffer.Size()})
		b.bytes += buffer.Size()
		return nil
	}
}

// allocateSeveral allocates n buffers, or fewer if a limit is reached.
func (b *buffers) allocateSeveral(
	n int, p *symmem.Pool, alloc func(int64) (symmem.Buffer, error),
) error {
	for range n {
		if b.isFull() {
			return nil
		}
		if err := b.addResult(p)(alloc(b.choices.drawSize())); err != nil {
			return err
		}
	}
	return nil
}

func (b *buffers) freeRandom() error {
	if len(b.live) == 0 {
		return nil
	}
	return b.freeAt(b.choices.IntN(len(b.live)))
}

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
