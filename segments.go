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

type segment struct {
	memory driver.Segment
	start  unsafe.Pointer
	// ordinal numbers the segments of the pool from 0, and is never reused.
	ordinal int32
	bytes   int64
	stream  uint32 // the pool's number of the stream for which the segment was mapped
	// releasing is set if the segment is about to be unmapped and must not be registered; guarded by
	// Pool.mu.
	releasing bool
	// holds counts the users that need the segment mapped. The pool has a hold until Trim, and so has
	// every registration in progress. Guarded by Pool.mu.
	holds int
}

// registrable reports whether s is mapped and may be registered. The caller must hold Pool.mu.
func (s *segment) registrable() bool { return s != nil && !s.releasing }

func byOrdinal(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// arenaSizes lists the sizes in bytes of the address ranges that a pool tries to reserve, in this
// order. The first exceeds the memory of any device, because the addresses of trimmed segments are
// not reused. The others are for processes with few free addresses, for example because of ulimit
// -v.
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30}

func newArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, bytes = range arenaSizes {
		arena, err = d.NewArena(bytes)
		if !errors.Is(err, syscall.ENOMEM) {
			break
		}
	}
	return arena, bytes, err
}

// segmentTable maps and unmaps the segments of a pool. Callers of its methods must hold mu, except
// for releaseAll and retire.
type segmentTable struct {
	mu     *ranked.Spin[poolMu]
	list   []*segment // by ordinal, nil once unmapped; guarded by mu
	closed bool       // whether the pool has been closed; guarded by mu
	// refuses is set while the pool is closed or suspended, and therefore refuses allocations;
	// guarded by mu.
	refuses bool
	pool    *Pool // identifies the pool to observers and to the registry
	rt      *Runtime
	events  *poolEvents
	arena   driver.Arena
	space   int64            // size of the arena in bytes
	next    int64            // arena offset of the next segment; guarded by mu
	kept    map[*segment]int // number of live buffers after Close; guarded by mu
}

func (t *segmentTable) event(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: t.pool, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

func (t *segmentTable) mapNext(bytes int64) (driver.Segment, error) {
	if bytes > t.space-t.next {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: syscall.ENOMEM}
	}
	return t.arena.Map(t.next, bytes)
}

// add appends the segment that mapNext has mapped.
func (t *segmentTable) add(memory driver.Segment, ordinal int32, bytes int64, stream uint32) {
	t.next += bytes
	address := memory.Address()
	s := &segment{
		memory: memory, start: *(*unsafe.Pointer)(unsafe.Pointer(&address)),
		ordinal: ordinal, bytes: bytes, stream: stream, holds: 1,
	}
	t.list = append(t.list, s)
	notify(t.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentAlloc }, t.event(s))
}

// start returns the address at which a block begins.
func (t *segmentTable) start(b alloc.Block) unsafe.Pointer {
	return unsafe.Add(t.list[b.Segment].start, b.Offset)
}

func (t *segmentTable) mapped() []*segment {
	var all []*segment
	for _, s := range t.list {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// hold adds a hold to each registrable segment that match accepts, starting with ordinal first, and
// returns these segments.
func (t *segmentTable) hold(first int32, match func(*segment) bool) []*segment {
	var held []*segment
	for _, s := range t.list[first:] {
		if s.registrable() && match(s) {
			s.holds++
			held = append(held, s)
		}
	}
	return held
}

// releaseAll removes one hold on each of the segments. Unlike release, it is called without mu.
func (t *segmentTable) releaseAll(held []*segment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range held {
		_ = t.release(s) // if unmapping fails, there is no caller left to report it to
	}
}

// release removes a hold on a segment and unmaps the segment if that was the last hold.
func (t *segmentTable) release(s *segment) error {
	if s.holds--; s.holds > 0 {
		return nil
	}
	return t.unmap(s)
}

// retire applies a step to each segment that Close has not unmapped in the meantime. It is called
// without mu.
func (t *segmentTable) retire(idle []*segment, step func(*segment) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, s := range idle {
		if t.list[s.ordinal] != nil {
			errs = append(errs, step(s))
		}
	}
	return errors.Join(errs...)
}

func (t *segmentTable) unmap(s *segment) error {
	notify(t.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentFree }, t.event(s))
	t.list[s.ordinal] = nil
	t.events.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return closedOnce(s.memory.Unmap())
}

// closedOnce returns the error of closing a window or a segment. In builds with the tag invariants
// it panics if the window or segment was already closed, which is a bug in this package.
func closedOnce(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: closed twice: " + err.Error())
	}
	return err
}

// close unmaps the segments of a closed pool that have no live buffers, and releases the pool's
// addresses if there are no live buffers at all. live contains the number of live buffers in each
// segment. All segments must have been deregistered.
func (t *segmentTable) close(live map[*segment]int) error {
	var errs []error
	for _, s := range t.mapped() {
		if live[s] > 0 {
			errs = append(errs, s.memory.Keep())
		} else {
			errs = append(errs, t.unmap(s))
		}
	}
	if len(live) == 0 {
		t.rt.registry.keepAddresses(t.pool, 0)
		return errors.Join(append(errs, t.arena.Close())...)
	}
	t.kept = live
	t.rt.registry.keepAddresses(t.pool, t.next)
	return errors.Join(append(errs, t.arena.Keep(t.next))...)
}

// noteFree records that a buffer has been freed after Close. The last free in a segment unmaps the
// segment, and the last free in the pool also releases the pool's addresses.
func (t *segmentTable) noteFree(s *segment) error {
	if t.kept[s]--; t.kept[s] > 0 {
		return nil
	}
	delete(t.kept, s)
	err := t.unmap(s)
	if len(t.kept) == 0 {
		t.rt.registry.keepAddresses(t.pool, 0)
		err = errors.Join(err, t.arena.Close())
	}
	return err
}
