package symmem

import (
	"errors"
	"fmt"

	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/spin"
)

// absorb records an event for the block of the core's latest call. p.mu is held.
func (p *Pool) absorb(kind event.Kind, b alloc.Block) {
	p.ledger.Note(kind, p.core.Owner(), b.Segment, b.Offset, b.Size, 0)
}

// blockOf returns the live block of a buffer.
func (p *Pool) blockOf(m Memory) (alloc.Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return alloc.Block{}, errPoolClosed
	}
	return p.core.Live(m.handle)
}

// usable returns ErrClosed once Close has begun. It is for calls that do not enter the pool,
// because Close does not wait for them.
func (p *Pool) usable() error {
	if p.calls.Closed() {
		return errPoolClosed
	}
	return nil
}

// free is a hot path. The pool of the zero buffer is nil.
func (p *Pool) free(b Buffer) error {
	if p == nil {
		return fmt.Errorf("freeing the zero buffer: %w", ErrForeign)
	}
	p.mu.Lock()
	if p.closed {
		return p.freeAfterClose(b)
	}
	block, state, err := p.core.FreeHandle(b.memory.handle)
	if err != nil || state != alloc.Free {
		return p.freeSlowly(block, state, err)
	}
	// This is absorb, which the compiler does not inline.
	p.ledger.Note(event.KindFree, p.core.Owner(), block.Segment, block.Offset, block.Size, 0)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	if p.watched {
		addressedPool{p}.noteFree(block)
		poolEvents{p}.release()
		return nil
	}
	p.mu.Unlock()
	return nil
}

// freeSlowly completes a free that failed, or that a graph or other streams delay. It unlocks p.mu.
func (p *Pool) freeSlowly(block alloc.Block, state alloc.State, err error) error {
	defer poolEvents{p}.release()
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}
	addressedPool{p}.noteFree(block)
	p.absorb(freeKinds[state], block)
	spin.Publish64(&p.frees, p.frees.Load()+1)
	if state == alloc.Deferred {
		return p.recordUses()
	}
	return nil
}

// freeKinds maps the state of a block after a free to the kind of event. A pin causes no event,
// because it affects the places of later blocks only once the block is freed.
var freeKinds = [...]event.Kind{
	alloc.Free: event.KindFree, alloc.Parked: event.KindPark, alloc.Deferred: event.KindDefer,
}

func (p *Pool) use(b Buffer, s *Stream) error {
	p.mu.Lock()
	defer poolEvents{p}.release()
	err := errPoolClosed
	if !p.closed {
		err = p.core.Use(b.memory.handle, s.number)
	}
	if err != nil {
		return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
	}
	poolEvents{p}.use(b.memory.handle, s)
	return nil
}

func (p *Pool) useAgain(m Memory, s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.UseAgain(m.handle, s.number)
}

// pin must be called within a visit, so that the pool is not closed.
func (p *Pool) pin(m Memory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.core.Pin(m.handle); err != nil {
		return fmt.Errorf("using a buffer in a capture: %w", err)
	}
	return nil
}

func (p *Pool) unpin(m Memory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	block, state, err := p.core.Unpin(m.handle)
	if err != nil {
		return fmt.Errorf("closing a graph: %w", err)
	}
	if state == alloc.Deferred {
		p.absorb(event.KindDefer, block)
		return p.recordUses()
	}
	p.absorbReturns()
	return nil
}

// recordUses records an event on every stream that used the block that was just deferred. A closed
// stream has no work left and gets a nil event, because ranks may forget a stream at different
// times. p.mu is held.
func (p *Pool) recordUses() error {
	var errs []error
	for _, m := range p.core.EventsToRecord() {
		e, err := p.rt.streams.at(m.Stream).recordEvent()
		if err != nil {
			e = nil
		}
		p.useEvents[m] = e
		if err != nil && !errors.Is(err, ErrClosed) {
			errs = append(errs, fmt.Errorf("freeing a buffer that other streams use: %w", err))
		}
	}
	return errors.Join(errs...)
}

// reclaim returns deferred blocks to the pool when memory is short. On the device, s waits for the
// uses that were recorded when the blocks were freed. A failure of those uses does not affect s.
// p.mu is held.
func (p *Pool) reclaim(s *Stream) error {
	for _, m := range p.core.Waits() {
		if err := p.awaitUse(s, m); err != nil {
			return fmt.Errorf("taking back memory that another stream used: %w", err)
		}
	}
	p.absorbReturns()
	return nil
}

// seize assigns free memory of other streams to s if err is an ErrOutOfMemory. It returns err if
// the other streams have no free memory. On the device, s waits for the work queued on these
// streams. A stream that is being captured neither gets nor loses memory, because the wait would
// become part of the graph. An adopted stream loses no memory while its owner may have destroyed
// it. p.mu is held.
func (p *Pool) seize(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, ErrOutOfMemory) || s.records() {
		return err
	}
	maySeize := func(number alloc.Stream) bool {
		owner := p.rt.streams.at(number)
		return !owner.mayBeGone() && !owner.records()
	}
	waited := map[alloc.Stream]bool{}
	taken, failure := p.core.Seize(bytes, s.number, maySeize, func(number alloc.Stream) error {
		if waited[number] {
			return nil
		}
		waited[number] = true
		e, err := p.rt.streams.at(number).recordEvent()
		switch {
		case errors.Is(err, ErrClosed):
			return nil // the stream has no work left
		case err != nil:
			return err
		}
		return s.queue.WaitOnly(e)
	})
	switch {
	case taken:
		return nil
	case failure != nil:
		return errors.Join(err, fmt.Errorf("taking free memory of other streams: %w", failure))
	}
	return err
}

func (p *Pool) awaitUse(s *Stream, m alloc.StreamPoint) error {
	e := p.useEvents[m]
	delete(p.useEvents, m)
	if e == nil {
		return nil
	}
	return s.queue.WaitOnly(e)
}

// absorbReturns records the blocks that became free in the core's latest call. p.mu is held.
func (p *Pool) absorbReturns() {
	for _, b := range p.core.Returned() {
		p.ledger.Note(event.KindReturn, b.Owner, b.Segment, b.Offset, b.Size, 0)
	}
}

// mark returns a mark that covers all uses and frees so far.
func (p *Pool) mark() alloc.Mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Mark()
}

// reclaimIdle is called when the stream's work before a mark is complete. It frees the blocks that
// were deferred because of that work, and makes the stream's unused memory available to other
// streams.
func (p *Pool) reclaimIdle(s *Stream, before alloc.Mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if len(p.useEvents) == 0 {
		p.core.Idle(s.number, before)
		return
	}
	p.synced(s, before)
}

// synced ends the uses by a stream that happened before a mark. p.mu is held.
func (p *Pool) synced(s *Stream, before alloc.Mark) {
	p.core.Synced(s.number, before)
	p.absorbReturns()
	for m := range p.useEvents {
		if m.Stream == s.number && before.Covers(m) {
			delete(p.useEvents, m)
		}
	}
}

// releaseMemory unmaps the unused memory of a pool that is being closed, and releases its addresses
// if no buffer is live. p.mu is held, and all segments are deregistered.
func (p *Pool) releaseMemory() error {
	live := p.liveBuffers()
	var errs []error
	for _, s := range p.segments {
		switch {
		case s == nil:
		case live[s] > 0:
			errs = append(errs, s.memory.Keep())
		default:
			errs = append(errs, p.unmap(s))
		}
	}
	if len(live) == 0 {
		p.rt.registry.keepAddresses(p, 0)
		return errors.Join(append(errs, p.arena.Close())...)
	}
	p.kept = live
	p.rt.registry.keepAddresses(p, p.next)
	return errors.Join(append(errs, p.arena.Keep(p.next))...)
}

// liveBuffers counts the live buffers by segment and omits segments without any. p.mu is held.
func (p *Pool) liveBuffers() map[*segment]int {
	live := map[*segment]int{}
	for _, s := range p.segments {
		if s == nil {
			continue
		}
		for b := range p.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				live[s]++
			}
		}
	}
	return live
}

// freeAfterClose frees a buffer of a closed pool and unlocks p.mu. The last free of a segment
// unmaps the segment. The last free of the pool releases the pool's addresses.
func (p *Pool) freeAfterClose(b Buffer) error {
	if len(p.kept) == 0 {
		return p.refuse()
	}
	defer poolEvents{p}.release()
	block, _, err := p.core.FreeHandle(b.memory.handle)
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}
	addressedPool{p}.noteFree(block)
	s := p.segments[block.Segment]
	if p.kept[s]--; p.kept[s] > 0 {
		return nil
	}
	delete(p.kept, s)
	err = p.unmap(s)
	if len(p.kept) == 0 {
		p.rt.registry.keepAddresses(p, 0)
		err = errors.Join(err, p.arena.Close())
	}
	return err
}
