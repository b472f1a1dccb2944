package symmem

import (
	"cmp"
	"fmt"

	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/spin"
)

// Free usually only gives a block of memory back to the core of its pool, the allocator. Two cases
// need more work. If other streams or graphs may still use the block, it becomes free later. If the
// pool has been closed, Free unmaps a segment (a part of the pool that was mapped at once) after
// its last buffer.

// blockOf returns the block of m, which must not have been freed. Its errors are ErrClosed,
// ErrFreed and ErrForeign.
func (p *Pool) blockOf(m Memory) (alloc.Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments.closed {
		return alloc.Block{}, errPoolClosed
	}

	return p.core.LiveBlock(m.handle)
}

// checkOpen returns an error if the pool is closed or suspended. A call that has entered the pool
// with enterPools needs no check, because the pool then stays open.
func (p *Pool) checkOpen() error {
	if p.calls.Closed() {
		return callRefusal(p)
	}

	return nil
}

// free implements Buffer.Free. p is nil for the zero buffer.
func (p *Pool) free(b Buffer) error {
	if p == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}

	p.mu.Lock()
	if p.segments.closed {
		return p.freeAfterClose(b)
	}

	block, state, err := p.core.FreeHandle(b.memory.handle)
	if err != nil || state != alloc.Free { // alloc.Free: no other stream and no graph uses the block
		return p.completeFree(block, state, err)
	}

	p.ledger.AppendWithoutSite(
		event.KindFree, p.core.Owner(), block.Segment, block.Offset, block.Size, noRequest)
	spin.Publish64(&p.frees, p.frees.Load()+1) // p.mu is held, so no increment is lost
	if p.events.active {
		p.addresses.recordFree(block)
		p.events.releaseOne() // unlocks p.mu
		return nil
	}

	p.mu.Unlock()
	return nil
}

// completeFree completes a Free for which core.FreeHandle has returned an error, or a block that
// may still be in use. It unlocks p.mu.
func (p *Pool) completeFree(block alloc.Block, state alloc.State, err error) error {
	defer p.events.release() // unlocks p.mu
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}

	p.addresses.recordFree(block)
	recordErr := p.uses.recordFree(block, state)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	return recordErr
}

// freeAfterClose frees a buffer of a closed pool, and unmaps the segment after its last buffer. The
// caller must hold p.mu, which freeAfterClose unlocks.
func (p *Pool) freeAfterClose(b Buffer) error {
	p.mu.Unlock()
	defer p.events.deliver()
	var freeErr error
	// end locks p.mu, calls this function, and then makes the returned calls without the lock.
	unmapErr := p.segments.end(func() unlockedCalls {
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
