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

// Suppose that a program frees a block of stream 1 that stream 2 may still use. Free makes the
// block deferred, and records a device event on stream 2. The block becomes free when the program
// synchronizes stream 2. If stream 1 needs the block earlier, its work first waits for the event.
//
// A captured graph pins its blocks. A pinned block that is freed becomes parked and, once the graph
// is closed, deferred or free.

// useTracker records which streams and graphs use the blocks of a pool.
type useTracker struct {
	mu       *ranked.Spin[poolMu]
	core     *alloc.Core    // the pool's allocator
	ledger   *ledger.Ledger // the pool's history, which ranks compare
	events   *poolEvents
	segments *segmentTable
	streams  *streamList
	// useEndEvents maps each use of a deferred block to the device event recorded after it, or to nil
	// if the stream was closed or the recording failed. Guarded by mu.
	useEndEvents map[alloc.StreamPoint]driver.Event
}

// addUse records that a stream uses a block. It must be called before the use is queued.
func (u *useTracker) addUse(m Memory, s *Stream) error {
	u.mu.Lock()
	defer u.events.unlock() // also delivers the recorded event
	if u.segments.closed {
		return useError(s, errPoolClosed)
	}

	if err := u.core.Use(m.handle, s.number); err != nil {
		return useError(s, err)
	}

	u.events.recordUse(m.handle, s)
	return nil
}

func useError(s *Stream, err error) error {
	return fmt.Errorf("using a buffer on stream %d: %w", s.number, err)
}

// renewUse repeats addUse after the work has been queued, because a Synchronize in between may have
// ended the use.
func (u *useTracker) renewUse(m Memory, s *Stream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.core.RenewUse(m.handle, s.number)
}

func (u *useTracker) pin(m Memory) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, err := u.core.Pin(m.handle); err != nil {
		return fmt.Errorf("using a buffer in a capture: %w", err)
	}

	return nil
}

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

// freeEventKinds maps the states of a freed block to event kinds.
var freeEventKinds = [...]event.Kind{
	alloc.Free: event.KindFree, alloc.Parked: event.KindPark, alloc.Deferred: event.KindDefer,
}

// noRequest is the Requested size of ledger events other than allocations.
const noRequest = 0

// recordFree appends the block that core has just freed to the ledger. For a deferred block, it
// also records device events. The caller must hold mu.
func (u *useTracker) recordFree(b alloc.Block, state alloc.State) error {
	kind := freeEventKinds[state]
	u.ledger.AppendWithoutSite(kind, u.core.Owner(), b.Segment, b.Offset, b.Size, noRequest)
	if state == alloc.Deferred {
		return u.recordUseEnds()
	}

	return nil
}

// recordUseEnds records a device event on each stream that used the block that core has just
// deferred. The caller must hold mu.
func (u *useTracker) recordUseEnds() error {
	var errs []error
	for _, use := range u.core.EventsToRecord() {
		useEnd, err := u.streams.find(use.Stream).recordEvent()
		if err == nil {
			u.useEndEvents[use] = useEnd
			continue
		}

		u.useEndEvents[use] = nil
		isStreamClosed := errors.Is(err, ErrClosed) // its work is complete
		if !isStreamClosed {
			errs = append(errs, fmt.Errorf("freeing a buffer that other streams use: %w", err))
		}
	}

	return errors.Join(errs...)
}

// awaitUses must follow core.Alloc. If core has reused deferred blocks, awaitUses makes the stream
// wait for their uses on the device. The caller must hold mu.
func (u *useTracker) awaitUses(s *Stream) error {
	for _, use := range u.core.Waits() {
		if err := u.awaitUse(s, use); err != nil {
			return fmt.Errorf("waiting for another stream that used the memory: %w", err)
		}
	}

	u.recordReturns()
	return nil
}

// awaitUse makes a stream wait for the end of one use. The caller must hold mu.
func (u *useTracker) awaitUse(s *Stream, use alloc.StreamPoint) error {
	useEnd := u.useEndEvents[use]
	delete(u.useEndEvents, use)
	if useEnd == nil {
		return nil
	}

	return s.queue.WaitIgnoringErrors(useEnd) // a failed use must not make s fail
}

// recordReturns records in the ledger which deferred or parked blocks have become free in core's
// latest call. The caller must hold mu.
func (u *useTracker) recordReturns() {
	for _, b := range u.core.ReturnedBlocks() {
		u.ledger.AppendWithoutSite(
			event.KindReturn, b.Owner, b.Segment, b.Offset, b.Size, noRequest)
	}
}

// mark returns the current point of the history. Call it before a wait for a stream, and reclaim
// after the wait.
func (u *useTracker) mark() alloc.Mark {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.core.Mark()
}

// reclaim makes free memory of s available to other streams, and ends the uses of deferred blocks
// by s. The work queued on s before the mark must be complete.
func (u *useTracker) reclaim(s *Stream, mark alloc.Mark) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.segments.closed {
		return
	}

	hasDeferredBlocks := len(u.useEndEvents) > 0
	if hasDeferredBlocks {
		u.endUsesBefore(s, mark)
	} else {
		u.core.MarkIdle(s.number, mark) // suffices, and is faster
	}
}

// endUsesBefore ends a stream's uses from before the mark. The caller must hold mu.
func (u *useTracker) endUsesBefore(s *Stream, mark alloc.Mark) {
	u.core.StreamCompleted(s.number, mark)
	u.recordReturns()
	for use := range u.useEndEvents {
		hasEnded := use.Stream == s.number && mark.Covers(use)
		if hasEnded {
			delete(u.useEndEvents, use)
		}
	}
}
