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

// A new pool reserves 1 TiB of addresses, its arena. The first buffer of 1 MiB makes the pool map
// 64 MiB of memory at the start of the arena: this is a segment, with the ordinal 0. Later segments
// follow it, with the ordinals 1, 2 and so on. No ordinal or address is used for a second segment.
//
// The ranks of a group register a segment together, which creates a window. Through it, each rank
// accesses the memory of the others. Pool.Trim therefore unmaps segment 1 in three steps. It
// withdraws the segment, so that groups register it no more. It deregisters the segment's windows.
// Then it releases the pool's hold. A hold keeps a segment mapped. The pool has one hold on each
// segment, and calls in progress can add others. The release of the last hold unmaps the segment.
//
// Unmapping, deregistering and closing the arena can wait for the GPU and for other ranks, so they
// must happen without the pool's lock. Functions that need the lock return them as unlocked calls.

// segment is a part of a pool's memory that was mapped by one call.
type segment struct {
	memory    driver.Segment
	start     unsafe.Pointer // address of memory
	ordinal   int32          // index in segmentTable.list
	bytes     int64
	stream    uint32 // number of the stream that uses the segment, for events
	withdrawn bool   // set by withdraw; guarded by Pool.mu
	holdCount int    // number of holds; guarded by Pool.mu
}

// withdraw makes groups register the segment no more. The caller must hold Pool.mu.
func (s *segment) withdraw() { s.withdrawn = true }

// canRegister reports whether groups may register the segment. s is nil if the segment has been
// unmapped. The caller must hold Pool.mu.
func (s *segment) canRegister() bool { return s != nil && !s.withdrawn }

func compareOrdinals(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// arenaSizes lists possible sizes of an arena, in the order in which a pool tries to reserve them.
// 1 TiB exceeds the memory of any device: a pool needs more addresses than memory, because it uses
// none twice. The other sizes are for processes whose address space is limited (ulimit -v).
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30} // 1 TiB, 16 GiB, 4 GiB, 1 GiB

// reserveArena reserves the first of arenaSizes that the system permits, and returns that size.
func reserveArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, size := range arenaSizes {
		arena, err = d.NewArena(size)
		if !errors.Is(err, syscall.ENOMEM) { // ENOMEM: the size is not permitted
			return arena, size, err
		}
	}

	return nil, 0, err
}

// segmentTable maps and unmaps a pool's segments. The callers of its methods must hold mu, except
// for methods whose comments say that they lock mu.
type segmentTable struct {
	pool       *Pool
	rt         *Runtime
	events     *poolEvents
	arena      driver.Arena
	arenaBytes int64

	// ending is held during end, so that concurrent calls of end run one after the other. Unlike mu,
	// it may be held while a call waits.
	ending ranked.Mutex[poolEnding]

	// mu is Pool.mu, which guards the fields below.
	mu         *ranked.Spin[poolMu]
	list       []*segment // by ordinal; nil if unmapped
	refusing   bool       // the pool is closed or suspended, so allocations fail
	closed     bool       // Pool.Close has begun to unmap the segments
	nextOffset int64      // where in the arena the next segment begins
	unreported error      // errors for the next Trim or Close: see reportLater
	// liveBuffers counts the buffers of a closed pool that have not been freed, by segment.
	liveBuffers map[*segment]int
}

// mapNext maps memory behind the newest segment. The caller adds the memory to the table with add.
// If the arena is full, the error is an ErrOutOfMemory.
func (t *segmentTable) mapNext(bytes int64) (driver.Segment, error) {
	if bytes > t.arenaBytes-t.nextOffset {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: syscall.ENOMEM}
	}

	return t.arena.Map(t.nextOffset, bytes)
}

// add adds memory from mapNext. ordinal, chosen by alloc.Core, must be the length of the list.
func (t *segmentTable) add(memory driver.Segment, ordinal int32, bytes int64, stream uint32) {
	t.nextOffset += bytes
	address := memory.Address()
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address)) // vet refuses unsafe.Pointer(address)
	s := &segment{
		memory: memory, start: start, ordinal: ordinal, bytes: bytes, stream: stream,
		holdCount: 1, // the pool's
	}
	t.list = append(t.list, s)
	notify(t.rt, selectSegmentAlloc, t.newSegmentEvent(s))
}

func (t *segmentTable) newSegmentEvent(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: t.pool, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

// These functions are for notify, which calls the selected function of each Observer.
func selectSegmentAlloc(o *Observer) func(SegmentEvent) { return o.SegmentAlloc }
func selectSegmentFree(o *Observer) func(SegmentEvent)  { return o.SegmentFree }

// blockStart returns the address of a block, which is a part of a mapped segment.
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

// holdSegments adds a hold to segments and returns them: from firstOrdinal on, those that groups
// may register and that isWanted accepts. The caller must later call releaseAll.
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

// unlockedCalls lists calls to make without mu. For example, they unmap segments.
type unlockedCalls []func() error

// end calls prepare with mu held, and then makes the unlocked calls that prepare returns. It joins
// their errors. It locks mu.
func (t *segmentTable) end(prepare func() unlockedCalls) error {
	t.ending.Lock()
	defer t.ending.Unlock()
	prepareWithMu := func() unlockedCalls {
		t.mu.Lock()
		defer t.mu.Unlock()
		return prepare()
	}
	var errs []error
	for _, call := range prepareWithMu() {
		errs = append(errs, call())
	}

	return errors.Join(errs...)
}

// endEach is end with one prepare for each segment. It locks mu. It skips segments that are already
// unmapped, for example by a concurrent Pool.Close.
func (t *segmentTable) endEach(all []*segment, prepare func(*segment) unlockedCalls) error {
	return t.end(func() (calls unlockedCalls) {
		for _, s := range all {
			if t.list[s.ordinal] != nil {
				calls = append(calls, prepare(s)...)
			}
		}

		return calls
	})
}

// awaitEnd waits until no goroutine is in end, and reports whether the pool is closed. It locks mu.
func (t *segmentTable) awaitEnd() (closed bool) {
	t.ending.Lock()
	defer t.ending.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// releaseAll releases the caller's holds on segments. It locks mu. It unmaps a segment if Pool.Trim
// has released the pool's hold in the meantime. It keeps the errors of unmapping for later.
func (t *segmentTable) releaseAll(held []*segment) {
	err := t.endEach(held, t.release)
	t.reportLater(err)
}

// release releases one hold on a segment. After the last one, it removes the segment from the table
// and returns a call that unmaps it.
func (t *segmentTable) release(s *segment) unlockedCalls {
	s.holdCount--
	if s.holdCount > 0 {
		return nil
	}

	return unlockedCalls{t.remove(s)}
}

// remove removes a segment from the table, and returns an unlocked call that unmaps it.
func (t *segmentTable) remove(s *segment) (unmap func() error) {
	notify(t.rt, selectSegmentFree, t.newSegmentEvent(s))
	t.list[s.ordinal] = nil
	t.events.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return func() error { return panicIfClosedTwice(s.memory.Unmap()) }
}

// panicIfClosedTwice returns err, the result of closing or unmapping something. An ErrClosed means
// that this was done before. With the build tag invariants, panicIfClosedTwice then panics.
func panicIfClosedTwice(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: closed twice: " + err.Error())
	}

	return err
}

// reportLater keeps an error or nil for the next Trim or Close. It locks mu. It is for calls that
// all ranks make together: if they returned the error, they would fail on this rank only.
func (t *segmentTable) reportLater(err error) {
	if err == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreported = errors.Join(t.unreported, err)
}

// takeUnreported returns the errors from reportLater, and forgets them. It locks mu.
func (t *segmentTable) takeUnreported() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.unreported
	t.unreported = nil
	return err
}

// close returns calls that unmap the segments of a closed pool and close its arena. Segments with
// live buffers (not freed yet) stay mapped, and the arena then only shrinks. live counts the live
// buffers by segment. All windows must be deregistered before the returned calls are made.
func (t *segmentTable) close(live map[*segment]int) (calls unlockedCalls) {
	for _, s := range t.mappedSegments() {
		if live[s] > 0 {
			calls = append(calls, s.memory.Keep) // ends other ranks' access
		} else {
			calls = append(calls, t.remove(s))
		}
	}

	if len(live) == 0 {
		return append(calls, t.closeArena())
	}

	t.liveBuffers = live
	usedBytes := t.nextOffset // the addresses behind the newest segment are given up
	t.rt.registry.setUsedAddresses(t.pool, usedBytes)
	shrinkArena := func() error { return t.arena.Keep(usedBytes) }
	return append(calls, shrinkArena)
}

// recordFree records that a live buffer in segment s of a closed pool was freed. After the last one
// in s, the returned calls unmap s. After the last one of the pool, they also close the arena.
func (t *segmentTable) recordFree(s *segment) unlockedCalls {
	t.liveBuffers[s]--
	if t.liveBuffers[s] > 0 {
		return nil
	}

	delete(t.liveBuffers, s)
	calls := unlockedCalls{t.remove(s)}
	if len(t.liveBuffers) == 0 {
		calls = append(calls, t.closeArena())
	}

	return calls
}

// closeArena returns an unlocked call that closes the arena. All segments must have been removed.
func (t *segmentTable) closeArena() func() error {
	t.rt.registry.setUsedAddresses(t.pool, 0) // no address belongs to the pool any more
	return t.arena.Close
}
