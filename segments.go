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
	// releasing is set before unmapping, to prevent a registration; guarded by Pool.mu.
	releasing bool
	// holdCount is the number of holders, which need the segment mapped: the pool and calls in
	// progress. Guarded by Pool.mu.
	holdCount int
}

// canRegister reports whether groups may register the segment. s is nil if the segment has been
// unmapped. The caller must hold Pool.mu.
func (s *segment) canRegister() bool { return s != nil && !s.releasing }

func compareOrdinals(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// arenaSizes lists sizes of a pool's address range, in the order in which the pool tries to
// reserve them. The first exceeds a device's memory, because a pool does not reuse addresses. The
// others are for processes whose address space is limited (ulimit -v).
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
	closed bool       // Pool.Close has begun to end the segments; guarded by mu
	// refusing is set while the pool is closed or suspended; guarded by mu.
	refusing   bool
	pool       *Pool
	rt         *Runtime
	events     *poolEvents
	arena      driver.Arena
	arenaBytes int64
	nextOffset int64 // where in the arena the next segment begins; guarded by mu
	// liveBuffers counts the buffers of a closed pool that have not been freed. It is nil before
	// Close. Guarded by mu.
	liveBuffers map[*segment]int
	unreported  error // passed to reportLater, for the next Trim or Close; guarded by mu
}

func (t *segmentTable) newSegmentEvent(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: t.pool, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

// mapNext maps memory behind the newest segment. The caller adds the memory to the table with add.
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

// holdSegments keeps segments mapped until a release, and returns them: the segments from ordinal
// first on that can be registered and that isWanted accepts.
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

// endCalls are functions that end windows, segments or an arena. They call the backend, which can
// wait for the GPU and for other ranks, and must therefore run without mu.
type endCalls []func() error

// end calls list with mu held, and then, without mu, the functions that list has returned. It
// joins their errors.
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

// endEach calls list for each of the segments that is still mapped, with mu held, and then,
// without mu, the functions that list has returned.
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

// releaseAll ends the caller's holds on segments. It unmaps the segments that a concurrent Trim
// has left to their holders, and keeps errors for the next Trim or Close.
func (t *segmentTable) releaseAll(held []*segment) { t.reportLater(t.endEach(held, t.release)) }

// reportLater keeps an error for the next Trim or Close. The current call must not return the
// error if all ranks make this call together, because it would then fail on this rank only.
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

// release ends a hold on a segment. After the last hold, it returns a call that unmaps the
// segment.
func (t *segmentTable) release(s *segment) endCalls {
	s.holdCount--
	if s.holdCount > 0 {
		return nil
	}
	return endCalls{t.unmap(s)}
}

// unmap removes a segment from the table and returns the call that unmaps its memory.
func (t *segmentTable) unmap(s *segment) (call func() error) {
	notify(t.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentFree },
		t.newSegmentEvent(s))
	t.list[s.ordinal] = nil
	t.events.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return func() error { return panicIfClosedTwice(s.memory.Unmap()) }
}

// panicIfClosedTwice returns err. With the build tag invariants, it panics if err is an ErrClosed.
func panicIfClosedTwice(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: closed twice: " + err.Error())
	}
	return err
}

// close returns calls that unmap the segments of a closed pool, except for segments with live
// buffers. live counts the live buffers by segment. Before these calls run, all segments must have
// been deregistered.
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

// recordFree records that a buffer in a segment of a closed pool has been freed. After the last
// buffer of the segment or of the pool, it returns calls that unmap the segment or end the arena.
func (t *segmentTable) recordFree(s *segment) endCalls {
	t.liveBuffers[s]--
	if t.liveBuffers[s] > 0 {
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
