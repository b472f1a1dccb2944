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

// checkOpen returns an error if the pool is closed or suspended. Calls between enterPools and
// leave can omit it.
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
		event.KindFree, p.core.Owner(), block.Segment, block.Offset, block.Size, 0)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	if p.events.active {
		p.addresses.recordFree(block)
		p.events.releaseOne()
		return nil
	}
	p.mu.Unlock()
	return nil
}

// freeSlowly completes a free after core.FreeHandle has returned an error, or a state other than
// alloc.Free because the memory may still be in use. It unlocks p.mu.
func (p *Pool) freeSlowly(block alloc.Block, state alloc.State, err error) error {
	defer p.events.release()
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}
	p.addresses.recordFree(block)
	err = p.uses.recordFree(block, state)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	return err
}

// freeAfterClose frees a buffer of a closed pool. It unlocks p.mu.
func (p *Pool) freeAfterClose(b Buffer) (err error) {
	p.mu.Unlock()
	defer p.events.deliver()
	endErr := p.segments.end(func() endCalls {
		if len(p.segments.liveBuffers) == 0 {
			err = errPoolClosed
			return nil
		}
		block, _, freeErr := p.core.FreeHandle(b.memory.handle)
		if freeErr != nil {
			err = fmt.Errorf("freeing a buffer: %w", freeErr)
			return nil
		}
		p.addresses.recordFree(block)
		return p.segments.recordFree(p.segments.list[block.Segment])
	})
	return cmp.Or(err, endErr)
}
