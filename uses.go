package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// useTracker records which streams and graphs use the blocks of a pool. If a block is freed during
// a use by another stream, it is deferred: it becomes free when its uses have ended. If it is freed
// while a graph uses it, it is parked: it stays allocated until the graph is closed.
type useTracker struct {
	mu       *ranked.Spin[poolMu]
	core     *alloc.Core    // the allocator, which decides when a block is free
	ledger   *ledger.Ledger // the history that ranks compare
	events   *poolEvents
	segments *segmentTable
	streams  *streamList
	// useEndEvents holds an event for the end of each use of a deferred block. The event is nil if
	// the stream has no unfinished work or the event could not be recorded. Guarded by mu.
	useEndEvents map[alloc.StreamPoint]driver.Event
}

// addUse records that a stream uses a block. Call it before the work is queued.
func (u *useTracker) addUse(m Memory, s *Stream) error {
	u.mu.Lock()
	defer u.events.release() // delivers events, and unlocks mu
	var err error
	if u.segments.closed {
		err = errPoolClosed
	} else {
		err = u.core.Use(m.handle, s.number)
	}

	if err != nil {
		return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
	}

	u.events.recordUse(m.handle, s)
	return nil
}

// renewUse records a use again. Call it after the work of the use has been queued: between addUse
// and that moment, a Synchronize of another goroutine may have ended the use.
func (u *useTracker) renewUse(m Memory, s *Stream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.core.RenewUse(m.handle, s.number)
}

// pin records that a captured graph uses a block.
func (u *useTracker) pin(m Memory) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, err := u.core.Pin(m.handle); err != nil {
		return fmt.Errorf("using a buffer in a capture: %w", err)
	}

	return nil
}

// unpin ends a graph's use of a block. If the block has been freed, it becomes free or deferred.
func (u *useTracker) unpin(m Memory) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.segments.closed {
		return nil
	}

	block, state, err := u.core.Unpin(m.handle)
	if err != nil {
		return fmt.Errorf("closing a graph: %w", err)
	}

	if state == alloc.Deferred {
		return u.recordFree(block, state)
	}

	u.recordReturns()
	return nil
}

// freeEventKinds maps the state of a block after it was freed to the event in the pool's history.
var freeEventKinds = [...]event.Kind{
	alloc.Free: event.KindFree, alloc.Parked: event.KindPark, alloc.Deferred: event.KindDefer,
}

// noRequest is the requested size in events that free or return a block.
const noRequest = 0

// recordFree records in the history that a block was freed and is now in the given state. If the
// block was deferred, it also records the ends of its uses. The caller must hold mu.
func (u *useTracker) recordFree(b alloc.Block, state alloc.State) error {
	kind := freeEventKinds[state]
	u.ledger.AppendWithoutSite(kind, u.core.Owner(), b.Segment, b.Offset, b.Size, noRequest)
	if state == alloc.Deferred {
		return u.recordUseEnds()
	}

	return nil
}

// recordUseEnds records a device event on each stream that uses the block that the core has just
// deferred. If an event cannot be recorded, it stores nil and returns an error. The caller must
// hold mu.
func (u *useTracker) recordUseEnds() error {
	var errs []error
	for _, point := range u.core.EventsToRecord() {
		useEnd, err := u.streams.find(point.Stream).recordEvent()
		if err == nil {
			u.useEndEvents[point] = useEnd
			continue
		}

		u.useEndEvents[point] = nil
		if !errors.Is(err, ErrClosed) { // a closed stream has no unfinished work
			errs = append(errs, fmt.Errorf("freeing a buffer that other streams use: %w", err))
		}
	}

	return errors.Join(errs...)
}

// awaitUses makes s wait for the last uses of the deferred blocks that the core has just made free
// for s. The wait is on the device: the caller does not wait. A failure of the work of these uses
// does not affect s. The caller must hold mu.
func (u *useTracker) awaitUses(s *Stream) error {
	for _, point := range u.core.Waits() {
		if err := u.awaitUse(s, point); err != nil {
			return fmt.Errorf("waiting for another stream that used the memory: %w", err)
		}
	}

	u.recordReturns()
	return nil
}

// awaitUse makes s wait for one use, which ends at a point of another stream's work, and forgets
// the event of the use.
func (u *useTracker) awaitUse(s *Stream, point alloc.StreamPoint) error {
	useEnd := u.useEndEvents[point]
	delete(u.useEndEvents, point)
	if useEnd == nil { // the use has ended, or its event could not be recorded
		return nil
	}

	return s.queue.WaitIgnoringErrors(useEnd)
}

// recordReturns records in the history which deferred or parked blocks have become free. The
// caller must hold mu.
func (u *useTracker) recordReturns() {
	for _, b := range u.core.ReturnedBlocks() {
		u.ledger.AppendWithoutSite(
			event.KindReturn, b.Owner, b.Segment, b.Offset, b.Size, noRequest)
	}
}

// mark returns a position in the sequence of recorded uses: the uses up to now are before it.
func (u *useTracker) mark() alloc.Mark {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.core.Mark()
}

// freeCompleteUses ends the uses of a stream that were recorded before the mark, and offers the
// stream's free memory to other streams. The stream's work before the mark must be complete.
func (u *useTracker) freeCompleteUses(s *Stream, mark alloc.Mark) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.segments.closed {
		return
	}

	hasDeferredBlocks := len(u.useEndEvents) > 0
	if hasDeferredBlocks {
		u.endUsesBefore(s, mark)
	} else {
		u.core.MarkIdle(s.number, mark) // faster
	}
}

// endUsesBefore ends the uses of a stream that were recorded before the mark. The caller must hold
// mu.
func (u *useTracker) endUsesBefore(s *Stream, mark alloc.Mark) {
	u.core.StreamCompleted(s.number, mark)
	u.recordReturns()
	for point := range u.useEndEvents {
		if point.Stream == s.number && mark.Covers(point) {
			delete(u.useEndEvents, point)
		}
	}
}
