package symmem

import (
	"cmp"
	"fmt"
	"unsafe"

	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/spin"
)

// Buffer refers to memory from Pool.Alloc. The zero Buffer refers to no memory. After Free, the
// pool reuses the memory, so all copies of the Buffer become invalid.
type Buffer struct{ memory Memory }

// Address returns the buffer's address on this rank. It may differ between ranks.
func (b Buffer) Address() uintptr { return uintptr(b.memory.start) }

// Size returns the size in bytes, which may be slightly more than requested.
func (b Buffer) Size() int64 { return b.memory.extent.bytes() }

// Segment returns the number of the buffer's segment, a mapped part of the pool, or -1 after Free.
// Segment and Offset are the same on all ranks that share the pool.
func (b Buffer) Segment() int {
	segment, _ := b.segmentAndOffset()
	return segment
}

// Offset returns the buffer's offset in its segment, in bytes.
func (b Buffer) Offset() int64 {
	_, offset := b.segmentAndOffset()
	return offset
}

// segmentAndOffset returns -1 and 0 for the zero Buffer or a freed buffer.
func (b Buffer) segmentAndOffset() (segment int, offset int64) {
	if b.memory.pool == nil {
		return -1, 0
	}

	block, err := b.memory.pool.blockOf(b.memory)
	if err != nil {
		return -1, 0
	}

	return int(block.Segment), block.Offset
}

// blockOf returns the block of m, or an error if it has been freed.
func (p *Pool) blockOf(m Memory) (alloc.Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments.closed {
		return alloc.Block{}, errPoolClosed
	}

	return p.core.LiveBlock(m.handle)
}

// Pool returns the buffer's pool.
func (b Buffer) Pool() *Pool { return b.memory.pool }

// Memory returns the whole buffer.
func (b Buffer) Memory() Memory { return b.memory }

// Free returns the buffer to its pool. A second Free returns ErrDoubleFree. Work already queued on
// the stream of the allocation may still use the buffer. For work on other streams, see UseOn.
//
// After Pool.Close, all work that uses the buffer must be complete before Free, because freeing the
// last buffer of a segment unmaps the segment.
func (b Buffer) Free() error {
	return b.memory.pool.free(b)
}

// free implements Buffer.Free. p is nil for the zero Buffer.
func (p *Pool) free(b Buffer) error {
	if p == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}

	p.mu.Lock()
	if p.segments.closed {
		p.mu.Unlock()
		return p.freeAfterClose(b)
	}

	block, state, err := p.core.FreeHandle(b.memory.handle)
	if err != nil {
		p.events.unlock()
		return fmt.Errorf("freeing a buffer: %w", err)
	}

	isStillUsed := state != alloc.Free
	if isStillUsed {
		return p.freeLaterAndUnlock(block, state)
	}

	p.ledger.AppendWithoutSite(
		event.KindFree, p.core.Owner(), block.Segment, block.Offset, block.Size, noRequest)
	countFree(p)
	if p.events.active {
		p.addresses.recordFree(block)
		p.events.unlockAfterOne()
		return nil
	}

	p.mu.Unlock()
	return nil
}

func (p *Pool) freeLaterAndUnlock(block alloc.Block, state alloc.State) error {
	defer p.events.unlock()
	p.addresses.recordFree(block)
	recordErr := p.uses.recordFree(block, state)
	countFree(p)
	return recordErr
}

// countFree needs no atomic increment, because the caller holds p.mu.
func countFree(p *Pool) { spin.Publish64(&p.frees, p.frees.Load()+1) }

// freeAfterClose frees a buffer of a closed pool, and unmaps the buffer's segment if no other
// buffer uses it.
func (p *Pool) freeAfterClose(b Buffer) error {
	defer p.events.deliver()
	var freeErr error
	unmapErr := p.segments.end(func() unlockedCalls { // end holds p.mu
		hasBuffers := len(p.segments.liveBuffers) > 0
		if !hasBuffers {
			freeErr = errPoolClosed
			return nil
		}

		block, _, err := p.core.FreeHandle(b.memory.handle)
		if err != nil {
			freeErr = fmt.Errorf("freeing a buffer: %w", err)
			return nil
		}

		p.addresses.recordFree(block)
		return p.segments.recordFree(p.segments.list[block.Segment])
	})
	return cmp.Or(freeErr, unmapErr)
}

// UseOn declares that work on s uses the buffer. After Free, the pool reuses the memory only once
// the work that was queued on s before Free is complete. If a graph has captured the work, the pool
// waits until the graph is closed. Collectives, Copy and Fill need no UseOn.
//
// All ranks that share the pool must make the same UseOn calls, and must synchronize s and close
// graphs at the same points of the program. Otherwise, later buffers get different offsets.
func (b Buffer) UseOn(s *Stream) error {
	if b.memory.pool == nil {
		return fmt.Errorf("using the zero buffer: %w", ErrForeign)
	}

	if s == nil || s.rt != b.memory.pool.rt {
		return invalid("using a buffer on a nil stream or a stream of another runtime")
	}

	pool := b.memory.pool
	use, err := enterPools(pool, nil)
	if err != nil {
		return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
	}
	defer use.leave(pool, nil)
	return s.use(b.memory)
}

// View returns a buffer's memory as a Go slice, or ErrUnsupported if the CPU cannot address it. The
// slice is valid until Free or Pool.Suspend. View does not wait for queued work.
func View[T Element](b Buffer) ([]T, error) {
	pool := b.memory.pool
	if pool == nil {
		return nil, fmt.Errorf("viewing the zero buffer: %w", ErrForeign)
	}

	if _, err := pool.blockOf(b.memory); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}

	if err := pool.checkOpen(); err != nil {
		return nil, fmt.Errorf("viewing a buffer: %w", err)
	}

	canCPUAddress := pool.rt.device.Info().Addressable
	if !canCPUAddress {
		return nil, fmt.Errorf("viewing device memory: %w", ErrUnsupported)
	}

	var zero T
	count := b.Size() / int64(unsafe.Sizeof(zero))
	return unsafe.Slice((*T)(b.memory.start), count), nil
}
