package symmem

import (
	"cmp"
	"fmt"

	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/spin"
)

// blockOf returns the live block of m. Its errors are ErrClosed, ErrFreed and ErrForeign.
func (p *Pool) blockOf(m Memory) (alloc.Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments.closed {
		return alloc.Block{}, errPoolClosed
	}

	return p.core.LiveBlock(m.handle)
}

// checkOpen returns an error if the pool is closed or suspended. It is not necessary between
// enterPools and leave, because the pool then stays open.
func (p *Pool) checkOpen() error {
	if p.calls.Closed() {
		return callRefusal(p)
	}

	return nil
}

// free implements Buffer.Free. It is fast if the memory is not in use. p is nil for the zero
// buffer.
func (p *Pool) free(b Buffer) error {
	if p == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}

	p.mu.Lock()
	if p.segments.closed {
		return p.freeAfterClose(b)
	}

	block, state, err := p.core.FreeHandle(b.memory.handle)
	if err != nil || state != alloc.Free {
		return p.freeSlowly(block, state, err)
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

// freeSlowly completes a free after core.FreeHandle has returned an error, or a state other than
// alloc.Free because the memory may still be in use. It unlocks p.mu.
func (p *Pool) freeSlowly(block alloc.Block, state alloc.State, err error) error {
	defer p.events.release() // unlocks p.mu
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}

	p.addresses.recordFree(block)
	recordErr := p.uses.recordFree(block, state)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	return recordErr
}

// freeAfterClose frees a buffer of a closed pool. The caller must hold p.mu, which freeAfterClose
// unlocks. After the last buffer of a segment, it also unmaps the segment.
func (p *Pool) freeAfterClose(b Buffer) error {
	p.mu.Unlock()
	defer p.events.deliver()
	var freeErr error
	unmapErr := p.segments.end(func() unlockedCalls {
		if len(p.segments.liveBuffers) == 0 {
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
