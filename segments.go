package symmem

import (
	"cmp"
	"errors"
	"syscall"
	"unsafe"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/invariants"
	"symmem/internal/ranked"
)

// segment is a part of a pool's memory that was mapped by one call.
type segment struct {
	memory  driver.Segment
	start   unsafe.Pointer
	ordinal int32 // index in segmentTable.list
	bytes   int64
	stream  uint32 // number of the stream that it was mapped for
	// releasing is set before unmapping, to prevent a registration; guarded by Pool.mu.
	releasing bool
	holdCount int // users that need the segment mapped; guarded by Pool.mu
}

// canRegister requires that the caller holds Pool.mu. s is nil if the segment has been unmapped.
func (s *segment) canRegister() bool { return s != nil && !s.releasing }

func compareOrdinals(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// arenaSizes lists the sizes of the address range that a pool tries to reserve. The first exceeds
// a device's memory, because a pool does not reuse addresses. The others are for ulimit -v.
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30}

func reserveArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, bytes = range arenaSizes {
		arena, err = d.NewArena(bytes)
		if !errors.Is(err, syscall.ENOMEM) {
			break
		}
	}
	return arena, bytes, err
}

// segmentTable maps and unmaps a pool's segments. Callers must hold mu, except for those of
// awaitEnd, end, endEach, lockAndList, releaseAll, reportLater and takeUnreported.
type segmentTable struct {
	// ending is held during end, to keep calls in order. Unlike mu, it may be held during waits.
	ending ranked.Mutex[poolEnding]
	mu     *ranked.Spin[poolMu]
	list   []*segment // by ordinal; nil if unmapped; guarded by mu
	closed bool       // guarded by mu
	// refusing is set while the pool is closed or suspended; guarded by mu.
	refusing    bool
	pool        *Pool
	rt          *Runtime
	events      *poolEvents
	arena       driver.Arena
	arenaBytes  int64
	nextOffset  int64            // in the arena; guarded by mu
	liveBuffers map[*segment]int // after Close; guarded by mu
	unreported  error            // from reportLater; guarded by mu
}

func (t *segmentTable) newSegmentEvent(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: t.pool, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

func (t *segmentTable) mapNext(bytes int64) (driver.Segment, error) {
	if bytes > t.arenaBytes-t.nextOffset {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: syscall.ENOMEM}
	}
	return t.arena.Map(t.nextOffset, bytes)
}

func (t *segmentTable) add(memory driver.Segment, ordinal int32, bytes int64, stream uint32) {
	t.nextOffset += bytes
	address := memory.Address()
	s := &segment{
		memory: memory, start: *(*unsafe.Pointer)(unsafe.Pointer(&address)),
		ordinal: ordinal, bytes: bytes, stream: stream, holdCount: 1,
	}
	t.list = append(t.list, s)
	notify(t.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentAlloc },
		t.newSegmentEvent(s))
}

func (t *segmentTable) blockStart(b alloc.Block) unsafe.Pointer {
	return unsafe.Add(t.list[b.Segment].start, b.Offset)
}

func (t *segmentTable) mappedSegments() []*segment {
	var all []*segment
	for _, s := range t.list {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// holdSegments keeps segments mapped: those from ordinal first on that can be registered and that
// isWanted accepts.
func (t *segmentTable) holdSegments(first int32, isWanted func(*segment) bool) []*segment {
	var held []*segment
	for _, s := range t.list[first:] {
		if s.canRegister() && isWanted(s) {
			s.holdCount++
			held = append(held, s)
		}
	}
	return held
}

// endCalls end windows, segments or an arena. Calls of the backend can wait for the GPU and for
// other ranks.
type endCalls []func() error

// end calls list with mu held, and then, without mu, the functions that list has returned.
func (t *segmentTable) end(list func() endCalls) error {
	t.ending.Lock()
	defer t.ending.Unlock()
	var errs []error
	for _, call := range t.lockAndList(list) {
		errs = append(errs, call())
	}
	return errors.Join(errs...)
}

// awaitEnd waits until no other goroutine is in end, and reports whether the pool is closed.
func (t *segmentTable) awaitEnd() (closed bool) {
	t.ending.Lock()
	defer t.ending.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

func (t *segmentTable) lockAndList(list func() endCalls) endCalls {
	t.mu.Lock()
	defer t.mu.Unlock()
	return list()
}

// endEach calls end with the functions that list returns for each segment that is still mapped.
func (t *segmentTable) endEach(segments []*segment, list func(*segment) endCalls) error {
	return t.end(func() (calls endCalls) {
		for _, s := range segments {
			if t.list[s.ordinal] != nil {
				calls = append(calls, list(s)...)
			}
		}
		return calls
	})
}

// releaseAll unmaps those segments that a concurrent Trim has left to their holders.
func (t *segmentTable) releaseAll(held []*segment) { t.reportLater(t.endEach(held, t.release)) }

// reportLater keeps an error for the next Trim or Close. If a call that the ranks make together
// returned it, that call would fail on this rank only.
func (t *segmentTable) reportLater(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreported = errors.Join(t.unreported, err)
}

func (t *segmentTable) takeUnreported() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.unreported
	t.unreported = nil
	return err
}

// release removes a hold. After the last one, it returns the call that unmaps the segment.
func (t *segmentTable) release(s *segment) endCalls {
	if s.holdCount--; s.holdCount > 0 {
		return nil
	}
	return endCalls{t.unmap(s)}
}

func (t *segmentTable) unmap(s *segment) (call func() error) {
	notify(t.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentFree },
		t.newSegmentEvent(s))
	t.list[s.ordinal] = nil
	t.events.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return func() error { return panicIfClosedTwice(s.memory.Unmap()) }
}

// panicIfClosedTwice panics if err is ErrClosed, with the build tag invariants.
func panicIfClosedTwice(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: closed twice: " + err.Error())
	}
	return err
}

// close returns calls that unmap the segments of a closed pool that have no live buffers. live
// counts the buffers. All segments must have been deregistered before these calls.
func (t *segmentTable) close(live map[*segment]int) (calls endCalls) {
	for _, s := range t.mappedSegments() {
		if live[s] > 0 {
			calls = append(calls, s.memory.Keep)
		} else {
			calls = append(calls, t.unmap(s))
		}
	}
	if len(live) == 0 {
		t.rt.registry.setUsedAddresses(t.pool, 0)
		return append(calls, t.arena.Close)
	}
	t.liveBuffers = live
	bytes := t.nextOffset
	t.rt.registry.setUsedAddresses(t.pool, bytes)
	return append(calls, func() error { return t.arena.Keep(bytes) })
}

// recordFree is for a Free after Close.
func (t *segmentTable) recordFree(s *segment) endCalls {
	if t.liveBuffers[s]--; t.liveBuffers[s] > 0 {
		return nil
	}
	delete(t.liveBuffers, s)
	calls := endCalls{t.unmap(s)}
	if len(t.liveBuffers) == 0 {
		t.rt.registry.setUsedAddresses(t.pool, 0)
		calls = append(calls, t.arena.Close)
	}
	return calls
}
