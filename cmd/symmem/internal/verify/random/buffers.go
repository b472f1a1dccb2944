package random

import (
	"slices"

	"symmem"
)

// Limits of live memory: the number of buffers, and their size in messages of the maximum size.
const (
	liveBuffers  = 64
	liveMessages = 16
)

// buffers holds the pools of a round and the live buffers of its program.
type buffers struct {
	draws   *draws
	streams []*symmem.Stream
	pools   []*symmem.Pool
	live    []holding
	bytes   int64 // of live
}

// holding represents a live buffer.
type holding struct {
	pool   *symmem.Pool // nil for local memory
	buffer symmem.Buffer
	bytes  int64
}

// memory returns the buffer without its padding.
func (h holding) memory() (symmem.Memory, error) { return h.buffer.Memory().Slice(0, h.bytes) }

// allocate allocates a buffer. It frees one instead if the limits are reached.
func (b *buffers) allocate() error {
	if b.full() {
		return b.free()
	}
	p := one(b.draws, b.pools)
	return b.keep(p)(p.AllocOn(one(b.draws, b.streams), b.draws.size()))
}

// full reports whether the limits of live memory are reached.
func (b *buffers) full() bool {
	return len(b.live) >= liveBuffers || b.bytes >= liveMessages*b.draws.maxBytes
}

// keep returns a function that adds the result of an allocation to the live buffers.
func (b *buffers) keep(p *symmem.Pool) func(symmem.Buffer, error) error {
	return func(made symmem.Buffer, err error) error {
		if err != nil {
			return err
		}
		b.live = append(b.live, holding{p, made, made.Size()})
		b.bytes += made.Size()
		return nil
	}
}

// several allocates n buffers, or fewer if the limits are reached.
func (b *buffers) several(
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

// free frees a live buffer, if there is one.
func (b *buffers) free() error {
	if len(b.live) == 0 {
		return nil
	}
	return b.drop(b.draws.IntN(len(b.live)))
}

// drop frees the live buffer with an index.
func (b *buffers) drop(i int) error {
	h := b.live[i]
	b.live = slices.Delete(b.live, i, i+1)
	b.bytes -= h.bytes
	return h.buffer.Free()
}

// dropIf frees the live buffers that fulfill a condition, the newest first.
func (b *buffers) dropIf(chosen func(holding) bool) error {
	for i := len(b.live) - 1; i >= 0; i-- {
		if chosen(b.live[i]) {
			if err := b.drop(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// pick draws n different live buffers. It returns none if there are fewer.
func (b *buffers) pick(n int) []holding {
	order := b.draws.Perm(len(b.live))
	if len(order) < n {
		return nil
	}
	var picked []holding
	for _, i := range order[:n] {
		picked = append(picked, b.live[i])
	}
	return picked
}
