package symmem

import (
	"cmp"
	"fmt"

	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/spin"
)

// blockOf returns the live block of m, or ErrClosed, ErrFreed or ErrForeign.
func (p *Pool) blockOf(m Memory) (alloc.Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments.closed {
		return alloc.Block{}, errPoolClosed
	}

	return p.core.LiveBlock(m.handle)
}

// checkOpen returns an error if the pool is closed or suspended. Calls after enterPools do not need
// it.
func (p *Pool) checkOpen() error {
	if p.calls.Closed() {
		return callRefusal(p)
	}

	return nil
}

// free implements Buffer.Free. p may be nil.
func (p *Pool) free(b Buffer) error {
	if p == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}

	p.mu.Lock()
	if p.segments.closed {
		return p.freeAfterClose(b)
	}

	block, state, err := p.core.FreeHandle(b.memory.handle)
	if err != nil {
		p.events.release() // unlocks p.mu
		return fmt.Errorf("freeing a buffer: %w", err)
	}

	if state != alloc.Free { // another stream or a graph may still use the block
		return p.freeLater(block, state)
	}

	p.ledger.AppendWithoutSite(
		event.KindFree, p.core.Owner(), block.Segment, block.Offset, block.Size, noRequest)
	spin.Publish64(&p.frees, p.frees.Load()+1) // all writers hold p.mu
	if p.events.active {
		p.addresses.recordFree(block)
		p.events.releaseOne() // unlocks p.mu
		return nil
	}

	p.mu.Unlock()
	return nil
}

// freeLater completes Free for a block that may still be in use. The caller must hold p.mu, which
// freeLater unlocks.
func (p *Pool) freeLater(block alloc.Block, state alloc.State) error {
	defer p.events.release() // unlocks p.mu
	p.addresses.recordFree(block)
	recordErr := p.uses.recordFree(block, state)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	return recordErr
}

// freeAfterClose frees a buffer of a closed pool. Along with the last buffer of a segment, it
// unmaps the segment. The caller must hold p.mu, which freeAfterClose unlocks.
func (p *Pool) freeAfterClose(b Buffer) error {
	p.mu.Unlock()
	defer p.events.deliver()
	var freeErr error
	// end calls this function with p.mu held, and then makes the returned calls without the lock.
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
