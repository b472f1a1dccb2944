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
	start   unsafe.Pointer // address of memory
	ordinal int32          // index in segmentTable.list
	bytes   int64
	stream  uint32 // number of the stream for which the segment was mapped
	// releasing is set when the segment is about to be unmapped. Groups then register it no more.
	// Guarded by Pool.mu.
	releasing bool
	// holdCount counts what needs the segment mapped: the pool itself, and calls in progress. When
	// it becomes 0, the segment is unmapped. Guarded by Pool.mu.
	holdCount int
}

// canRegister reports whether groups may register the segment. s is nil if the segment has been
// unmapped. The caller must hold Pool.mu.
func (s *segment) canRegister() bool { return s != nil && !s.releasing }

func compareOrdinals(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// arenaSizes lists sizes of a pool's address range (its arena) in bytes, in the order in which the
// pool tries to reserve them. The first, 1 TiB, exceeds any device's memory: a pool never maps a
// new segment at the addresses of an unmapped one, so it needs more addresses than memory. The
// others are for processes whose address space is limited (ulimit -v).
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30}

// reserveArena reserves the first of arenaSizes that the system permits, and returns that size.
func reserveArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, size := range arenaSizes {
		arena, err = d.NewArena(size)
		if !errors.Is(err, syscall.ENOMEM) {
			return arena, size, err
		}
	}

	return nil, 0, err
}

// segmentTable maps and unmaps a pool's segments. Callers must hold mu, except for those of
// awaitEnd, end, endEach, prepareLocked, releaseAll, reportLater and takeUnreported.
type segmentTable struct {
	// ending is held during end, to keep calls in order. Unlike mu, it may be held during waits.
	ending ranked.Mutex[poolEnding]
	mu     *ranked.Spin[poolMu]
	list   []*segment // by ordinal; nil if unmapped; guarded by mu
	closed bool       // Pool.Close has begun to end the segments; guarded by mu
	// refusing is set while the pool is closed or suspended: allocations then fail. Guarded by mu.
	refusing   bool
	pool       *Pool
	rt         *Runtime
	events     *poolEvents
	arena      driver.Arena
	arenaBytes int64
	nextOffset int64 // where in the arena the next segment begins; guarded by mu
	// liveBuffers counts, by segment, the buffers of a closed pool that have not been freed. It is
	// nil before Close. Guarded by mu.
	liveBuffers map[*segment]int
	// unreported holds errors from reportLater until the next Trim or Close returns them; guarded
	// by mu.
	unreported error
}

func (t *segmentTable) newSegmentEvent(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: t.pool, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

// mapNext maps memory behind the newest segment. The caller adds the memory to the table with add.
// If the arena is full, the error is an ErrOutOfMemory.
func (t *segmentTable) mapNext(bytes int64) (driver.Segment, error) {
	if bytes > t.arenaBytes-t.nextOffset {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: syscall.ENOMEM}
	}

	return t.arena.Map(t.nextOffset, bytes)
}

// add adds memory that mapNext has mapped. ordinal must be the length of the table's list.
func (t *segmentTable) add(memory driver.Segment, ordinal int32, bytes int64, stream uint32) {
	t.nextOffset += bytes
	address := memory.Address()
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address)) // vet refuses unsafe.Pointer(address)
	s := &segment{
		memory: memory, start: start, ordinal: ordinal, bytes: bytes, stream: stream,
		holdCount: 1, // the pool's
	}
	t.list = append(t.list, s)
	segmentAlloc := func(o *Observer) func(SegmentEvent) { return o.SegmentAlloc }
	notify(t.rt, segmentAlloc, t.newSegmentEvent(s))
}

// blockStart returns the address of a block, whose segment must be mapped.
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

// holdSegments adds a hold to segments and returns them. A held segment stays mapped until
// release. The segments are those from the given ordinal on that can be registered and that
// isWanted accepts.
func (t *segmentTable) holdSegments(firstOrdinal int32, isWanted func(*segment) bool) []*segment {
	var held []*segment
	for _, s := range t.list[firstOrdinal:] {
		if s.canRegister() && isWanted(s) {
			s.holdCount++
			held = append(held, s)
		}
	}

	return held
}

// unlockedCalls lists functions that end windows (registrations of segments), segments or an
// arena. They call the backend, which can wait for the GPU and for other ranks. They must
// therefore run without mu.
type unlockedCalls []func() error

// end ends windows, segments or an arena in two steps. With mu held, it calls prepare, which
// updates the table. Without mu, it then makes the calls that prepare has returned, and joins
// their errors.
func (t *segmentTable) end(prepare func() unlockedCalls) error {
	t.ending.Lock()
	defer t.ending.Unlock()
	var errs []error
	for _, call := range t.prepareLocked(prepare) {
		errs = append(errs, call())
	}

	return errors.Join(errs...)
}

// awaitEnd waits until no other goroutine is in end. closed is true if the pool is closed.
func (t *segmentTable) awaitEnd() (closed bool) {
	t.ending.Lock()
	defer t.ending.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// prepareLocked calls prepare with mu held.
func (t *segmentTable) prepareLocked(prepare func() unlockedCalls) unlockedCalls {
	t.mu.Lock()
	defer t.mu.Unlock()
	return prepare()
}

// endEach is end with one prepare for each segment. It skips segments that are unmapped already.
func (t *segmentTable) endEach(
	segments []*segment, prepare func(*segment) unlockedCalls,
) error {
	return t.end(func() (calls unlockedCalls) {
		for _, s := range segments {
			isMapped := t.list[s.ordinal] != nil
			if isMapped {
				calls = append(calls, prepare(s)...)
			}
		}

		return calls
	})
}

// releaseAll ends the caller's holds on segments, and unmaps those without another hold. (A
// concurrent Trim has ended the pool's hold on these.) It keeps errors for the next Trim or Close.
func (t *segmentTable) releaseAll(held []*segment) {
	err := t.endEach(held, t.release)
	t.reportLater(err)
}

// reportLater keeps an error, which may be nil, for the next Trim or Close. It is for calls that
// all ranks make together: if they returned the error, they would fail on this rank only.
func (t *segmentTable) reportLater(err error) {
	if err == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreported = errors.Join(t.unreported, err)
}

// takeUnreported returns the errors from reportLater, and forgets them.
func (t *segmentTable) takeUnreported() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.unreported
	t.unreported = nil
	return err
}

// release ends a hold on a segment. After the last hold, it removes the segment from the table and
// returns a call that unmaps its memory.
func (t *segmentTable) release(s *segment) unlockedCalls {
	s.holdCount--
	if s.holdCount > 0 {
		return nil
	}

	return unlockedCalls{t.remove(s)}
}

// remove removes a segment from the table. The caller must later make the returned call, which
// unmaps the segment's memory.
func (t *segmentTable) remove(s *segment) (unmap func() error) {
	segmentFree := func(o *Observer) func(SegmentEvent) { return o.SegmentFree }
	notify(t.rt, segmentFree, t.newSegmentEvent(s))
	t.list[s.ordinal] = nil
	t.events.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return func() error {
		err := s.memory.Unmap()
		return panicIfClosedTwice(err)
	}
}

// panicIfClosedTwice returns err, the result of closing an object. With the build tag invariants,
// it panics if err is an ErrClosed, because the object was then closed before.
func panicIfClosedTwice(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: closed twice: " + err.Error())
	}

	return err
}

// close removes the segments of a closed pool from the table, except for segments with live
// buffers. live counts the live buffers by segment. The returned calls unmap the removed segments
// and, if no segment remains, end the arena. Make them after all segments have been deregistered.
func (t *segmentTable) close(live map[*segment]int) (calls unlockedCalls) {
	for _, s := range t.mappedSegments() {
		if live[s] > 0 {
			calls = append(calls, s.memory.Keep)
		} else {
			calls = append(calls, t.remove(s))
		}
	}

	if len(live) == 0 {
		t.rt.registry.setUsedAddresses(t.pool, 0)
		return append(calls, t.arena.Close)
	}

	t.liveBuffers = live
	usedBytes := t.nextOffset // the arena's addresses up to the end of its last segment
	t.rt.registry.setUsedAddresses(t.pool, usedBytes)
	keepUsed := func() error { return t.arena.Keep(usedBytes) }
	return append(calls, keepUsed)
}

// recordFree records that a buffer in a segment of a closed pool has been freed. After the
// segment's last buffer, it removes the segment and returns a call that unmaps it. After the
// pool's last buffer, it also returns a call that ends the arena.
func (t *segmentTable) recordFree(s *segment) unlockedCalls {
	t.liveBuffers[s]--
	if t.liveBuffers[s] > 0 {
		return nil
	}

	delete(t.liveBuffers, s)
	calls := unlockedCalls{t.remove(s)}
	if len(t.liveBuffers) == 0 {
		t.rt.registry.setUsedAddresses(t.pool, 0)
		calls = append(calls, t.arena.Close)
	}

	return calls
}
