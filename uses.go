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

// Suppose that a program frees a block of stream 1 that stream 2 may still use. The block becomes
// deferred, and Free records a device event on stream 2. The block becomes free when the program
// waits for stream 2, or when stream 1 runs out of other memory and waits on the device for the
// event.
//
// A captured graph pins the blocks that it uses. A freed block that is pinned becomes parked until
// the graph is closed, and then deferred or free.

// useTracker records which streams and graphs use the blocks of a pool.
type useTracker struct {
	mu       *ranked.Spin[poolMu]
	core     *alloc.Core    // the pool's allocator
	ledger   *ledger.Ledger // the pool's event history, which ranks compare
	events   *poolEvents
	segments *segmentTable
	streams  *streamList
	// useEndEvents has a device event for each stream that used a deferred block. The event follows
	// the use. It is nil if there was nothing to wait for, or recording failed. Guarded by mu.
	useEndEvents map[alloc.StreamPoint]driver.Event
}

// addUse records that a stream uses a block. The caller must queue the work afterwards.
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

// renewUse renews a use after its work has been queued. Otherwise, a Synchronize between addUse and
// the queueing would end the use too early.
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

// noRequest is the requested size in events that do not allocate.
const noRequest = 0

// recordFree appends an event for a freed block to the ledger. For a deferred block, it also
// records device events. The caller must hold mu.
func (u *useTracker) recordFree(b alloc.Block, state alloc.State) error {
	kind := freeEventKinds[state]
	u.ledger.AppendWithoutSite(kind, u.core.Owner(), b.Segment, b.Offset, b.Size, noRequest)
	if state == alloc.Deferred {
		return u.recordUseEnds()
	}

	return nil
}

// recordUseEnds records a device event on each stream that used the block that the core has just
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
		isStreamClosed := errors.Is(err, ErrClosed) // and thus has no unfinished work
		if !isStreamClosed {
			errs = append(errs, fmt.Errorf("freeing a buffer that other streams use: %w", err))
		}
	}

	return errors.Join(errs...)
}

// awaitUses makes a stream wait on the device for the uses of the deferred blocks that the latest
// core.Alloc has freed for the stream. The caller must hold mu.
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
	if useEnd == nil { // the use has ended, or recording the event failed
		return nil
	}

	return s.queue.WaitIgnoringErrors(useEnd) // the error of a failed use does not affect s
}

// recordReturns appends an event to the ledger for each deferred or parked block that the latest
// call of the core has freed. The caller must hold mu.
func (u *useTracker) recordReturns() {
	for _, b := range u.core.ReturnedBlocks() {
		u.ledger.AppendWithoutSite(
			event.KindReturn, b.Owner, b.Segment, b.Offset, b.Size, noRequest)
	}
}

// mark separates the uses recorded so far from later ones. Call mark before waiting for a stream,
// and freeCompleteUses after the wait.
func (u *useTracker) mark() alloc.Mark {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.core.Mark()
}

// freeCompleteUses ends a stream's uses from before the mark, whose work must be complete, and
// offers the stream's free memory to other streams.
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
		u.core.MarkIdle(s.number, mark) // faster, but does not end uses
	}
}

// endUsesBefore ends the stream's uses from before the mark. The caller must hold mu.
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
