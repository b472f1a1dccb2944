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

// checkOpen returns an error if the pool is closed or suspended. After enterPools, it is not
// needed.
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
	countFree(p)
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
	countFree(p)
	return recordErr
}

// countFree increments p.frees. The caller must hold p.mu, so an atomic store suffices.
func countFree(p *Pool) { spin.Publish64(&p.frees, p.frees.Load()+1) }

// freeAfterClose frees a buffer of a closed pool, and unmaps the buffer's segment if no other
// buffer uses it. The caller must hold p.mu, which freeAfterClose unlocks.
func (p *Pool) freeAfterClose(b Buffer) error {
	p.mu.Unlock()
	defer p.events.deliver()
	var freeErr error
	// end locks p.mu while it calls the function, and makes the returned calls after unlocking.
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
