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

// Suppose that a block belongs to stream 1, and a kernel on stream 2 uses it. If the program frees
// the block before the kernel has run, the memory cannot be reused yet: the block is deferred. It
// becomes free in one of two ways:
//
//   - The program waits for stream 2, for example with Synchronize. Then the use has ended.
//   - The program allocates on stream 1, which has no other block that is large enough. Then stream
//     1 waits, on the device, for the end of the use. Free has marked this end by a device event on
//     stream 2.
//
// A captured graph pins the blocks that it uses. If the program frees a pinned block, the block is
// parked. When the graph is closed, it becomes deferred or free.

// useTracker records which streams and graphs use the blocks of a pool.
type useTracker struct {
	mu       *ranked.Spin[poolMu]
	core     *alloc.Core    // the allocator, which decides when a block is free
	ledger   *ledger.Ledger // the pool's history of frees and other events, which ranks compare
	events   *poolEvents
	segments *segmentTable
	streams  *streamList
	// useEndEvents holds a device event for the end of each use of a deferred block. A StreamPoint
	// identifies such a use by its block and its stream. The event is nil if the stream has no
	// unfinished work or the event could not be recorded. Guarded by mu.
	useEndEvents map[alloc.StreamPoint]driver.Event
}

// addUse records that a stream uses a block. Call it before the work is queued.
func (u *useTracker) addUse(m Memory, s *Stream) error {
	u.mu.Lock()
	defer u.events.release() // delivers the recorded event, and unlocks mu
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

// renewUse makes a use as recent as if addUse had just recorded it. Call it after the work has been
// queued. Otherwise, a Synchronize between addUse and the queueing could end the use.
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

// unpin ends a graph's use of a block. In a closed pool, it does nothing.
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

	u.recordReturns() // the block, if it was parked and is free now
	return nil
}

// freeEventKinds maps the state of a block after Free or unpin to the event in the history.
var freeEventKinds = [...]event.Kind{
	alloc.Free: event.KindFree, alloc.Parked: event.KindPark, alloc.Deferred: event.KindDefer,
}

// noRequest stands for the requested size in events that are not allocations.
const noRequest = 0

// recordFree records in the history that a block is now free, parked or deferred. For a deferred
// block, it also records the ends of the uses. The caller must hold mu.
func (u *useTracker) recordFree(b alloc.Block, state alloc.State) error {
	kind := freeEventKinds[state]
	u.ledger.AppendWithoutSite(kind, u.core.Owner(), b.Segment, b.Offset, b.Size, noRequest)
	if state == alloc.Deferred {
		return u.recordUseEnds()
	}

	return nil
}

// recordUseEnds records a device event for each use of the block that the core has just deferred.
// It returns an error if an event cannot be recorded, unless the stream is closed. The caller must
// hold mu.
func (u *useTracker) recordUseEnds() error {
	var errs []error
	for _, use := range u.core.EventsToRecord() {
		useEnd, err := u.streams.find(use.Stream).recordEvent()
		if err == nil {
			u.useEndEvents[use] = useEnd
			continue
		}

		u.useEndEvents[use] = nil
		hasUnfinishedWork := !errors.Is(err, ErrClosed) // a closed stream has none
		if hasUnfinishedWork {
			errs = append(errs, fmt.Errorf("freeing a buffer that other streams use: %w", err))
		}
	}

	return errors.Join(errs...)
}

// awaitUses makes a stream wait for uses of deferred blocks. Call it after core.Alloc, which may
// have made such blocks free for the stream. The stream waits on the device, so the caller does not
// wait. If the work of a use fails, the stream does not fail. The caller must hold mu.
func (u *useTracker) awaitUses(s *Stream) error {
	for _, use := range u.core.Waits() {
		if err := u.awaitUse(s, use); err != nil {
			return fmt.Errorf("waiting for another stream that used the memory: %w", err)
		}
	}

	u.recordReturns()
	return nil
}

// awaitUse makes a stream wait for the end of one use, and forgets the event of the use. The caller
// must hold mu.
func (u *useTracker) awaitUse(s *Stream, use alloc.StreamPoint) error {
	useEnd := u.useEndEvents[use]
	delete(u.useEndEvents, use)
	if useEnd == nil { // the use has ended, or its event could not be recorded
		return nil
	}

	return s.queue.WaitIgnoringErrors(useEnd)
}

// recordReturns records in the history the deferred and parked blocks that the latest call of the
// core has made free. The caller must hold mu.
func (u *useTracker) recordReturns() {
	for _, b := range u.core.ReturnedBlocks() {
		u.ledger.AppendWithoutSite(
			event.KindReturn, b.Owner, b.Segment, b.Offset, b.Size, noRequest)
	}
}

// mark returns a position in the sequence of recorded uses: the uses up to now are before it. Take
// a mark before waiting for a stream, and call freeCompleteUses after that.
func (u *useTracker) mark() alloc.Mark {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.core.Mark()
}

// freeCompleteUses ends the uses of a stream from before the mark if there are deferred blocks, and
// offers the stream's free memory to other streams. The stream's work from before the mark must be
// complete.
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
		u.core.MarkIdle(s.number, mark) // only offers the free memory, which is faster
	}
}

// endUsesBefore ends the uses of a stream from before the mark. The caller must hold mu.
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
