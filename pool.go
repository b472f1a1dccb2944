package symmem

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
	"symmem/internal/spin"
)

// PoolOptions configures NewPool. The zero value creates a pool without a domain.
type PoolOptions struct {
	// Domain is the group whose ranks promise to make the same requests to this pool in the same
	// order. If it is nil, the pool's memory is never registered.
	Domain *Group
	// Capacity limits the bytes that the pool may map. 0 means that only the device limits them.
	Capacity int64
	// Placement selects one of several free blocks of the same size.
	Placement Placement
	// FirstSegment is the size of the first segment in bytes. 0 selects 64 MiB. Each later segment
	// is as large as all earlier segments together, so n bytes require O(log n) segments. Streams
	// share segments; docs/design/placement.md states how much memory is mapped at most.
	FirstSegment int64
	// Sizing determines the sizes of segments and how they are split into blocks.
	Sizing Sizing
}

// Pool is a caching allocator of buffers over the segments of one arena.
//
// Any Alloc may map a new segment. For each group, the segment is pending until the group registers
// it, which creates a window. The end of a scope of the group registers it, or the group's first
// collective on it. Trim or Close finally deregisters it from all groups and unmaps it.
//
// A Pool is safe for concurrent use. Concurrent requests of several goroutines have no defined
// order, so a program that needs symmetric buffers must allocate on one goroutine or order its
// requests. Allocation never waits for another rank.
type Pool struct {
	rt     *Runtime
	id     uint64
	number uint64 // number in events: id or, without a domain, a count of such pools
	domain *Group
	arena  driver.Arena
	space  int64 // size of the arena in bytes

	mu        ranked.Spin[poolMu]
	core      *alloc.Core                        // guarded by mu
	ledger    *ledger.Ledger                     // guarded by mu
	segments  []*segment                         // by ordinal, nil once trimmed; guarded by mu
	next      int64                              // arena offset of the next segment; guarded by mu
	useEvents map[alloc.StreamPoint]driver.Event // for uses of deferred blocks; guarded by mu
	members   map[*Group]*membership             // by registered group; guarded by mu
	closed    bool                               // guarded by mu
	suspicion suspicion                          // guarded by mu
	kept      map[*segment]int                   // number of live buffers after Close; guarded by mu
	addresses addressIndex                       // guarded by mu
	watched   bool                               // there is an index or OnEvent; guarded by mu
	outbox    outbox                             // guarded by mu
	// frees counts freed buffers. It is written with mu held and read without.
	frees atomic.Uint64
	calls spin.Gate // counts the calls that use the pool's memory; closed when Close begins
}

// segment represents a mapped segment.
type segment struct {
	memory driver.Segment
	start  unsafe.Pointer
	// ordinal numbers the segments of the pool from 0. Ordinals are not reused.
	ordinal int32
	bytes   int64
	stream  uint32 // the pool's number of the stream that it was mapped for
	// releasing reports whether the segment is about to be unmapped and must not be registered;
	// guarded by Pool.mu.
	releasing bool
	// holds counts the users that need the segment mapped: the pool, until Trim, and registrations in
	// progress; guarded by Pool.mu.
	holds int
}

// registrable reports whether the segment, an entry of Pool.segments, may be registered. Pool.mu is
// held.
func (s *segment) registrable() bool { return s != nil && !s.releasing }

// arenaSizes lists the sizes in bytes of the address range that a pool tries to reserve. The
// addresses of trimmed segments are not reused, so the first size exceeds the memory of any device.
// If addresses are limited (ulimit -v, many pools), the pool uses a smaller range.
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30}

// newArena reserves the largest possible address range.
func newArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, bytes = range arenaSizes {
		arena, err = d.NewArena(bytes)
		if !errors.Is(err, syscall.ENOMEM) {
			break
		}
	}
	return arena, bytes, err
}

// NewPool creates a pool. Every rank of a domain must create the domain's pools in the same order.
// NewPool does not wait for other ranks.
func (rt *Runtime) NewPool(o PoolOptions) (*Pool, error) {
	if err := rt.creation.begin(); err != nil {
		return nil, err
	}
	defer rt.creation.done()
	if o.Domain != nil && o.Domain.rt != rt {
		return nil, invalid("making a pool: its domain is a group of another runtime")
	}
	if o.Domain != nil && rt.registry.poolsOf(o.Domain) >= agreement.MaxLedgers {
		return nil, invalid("making a pool: group %s is already the domain of %d pools, the maximum",
			o.Domain.id, agreement.MaxLedgers)
	}
	core, err := alloc.New(o.config(rt.device.Info().Granularity))
	if err != nil {
		return nil, invalid("making a pool: %v", err)
	}
	arena, space, err := newArena(rt.device)
	if err != nil {
		return nil, fmt.Errorf("making a pool: %w", err)
	}
	p := &Pool{
		rt: rt, domain: o.Domain, arena: arena, space: space, core: core, ledger: ledger.New(0),
		useEvents: map[alloc.StreamPoint]driver.Event{},
		members:   map[*Group]*membership{}, watched: rt.opts.OnEvent != nil,
	}
	rt.registry.addPool(p)
	return p, nil
}

func (o PoolOptions) config(granularity int64) alloc.Config {
	return alloc.Config{
		Policy: alloc.Policy(o.Placement), Sizing: alloc.Sizing(o.Sizing), Capacity: o.Capacity,
		First: o.FirstSegment, Granularity: granularity,
	}
}

// Domain returns the group whose ranks make the same requests, or nil if there is none.
func (p *Pool) Domain() *Group { return p.domain }

// Alloc returns a buffer of at least the given size for use on the default stream. Its contents are
// undefined.
//
// Alloc returns ErrSize, an OutOfMemoryError or ErrClosed.
func (p *Pool) Alloc(bytes int64) (Buffer, error) { return p.AllocOn(p.rt.stream, bytes) }

// AllocOn is like Alloc, for use on a given stream. Earlier work of that stream may still be using
// the memory.
func (p *Pool) AllocOn(s *Stream, bytes int64) (Buffer, error) {
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.ofCaller()
	}
	return p.alloc(s, bytes, site)
}

// alloc allocates a buffer and records the call site, or none if site is 0.
func (p *Pool) alloc(s *Stream, bytes int64, site uint32) (Buffer, error) {
	if s == nil || s.rt != p.rt {
		return Buffer{}, invalid("allocating on a stream of another runtime")
	}
	// This is the hot path of every allocation, so it has no defer and calls other functions for
	// rare cases.
	p.mu.Lock()
	if p.closed {
		return Buffer{}, p.refuse()
	}
	block, growth, err := p.core.Alloc(bytes, s.number)
	if err != nil || growth.Bytes != 0 || p.core.Reported() {
		if block, err = p.allocSlowly(s, bytes, block, growth, err, site); err != nil {
			poolEvents{p}.release()
			return Buffer{}, err
		}
	}
	in := p.segments[block.Segment]
	b := Buffer{Memory{
		pool: p, handle: block.Handle, extent: newExtent(block.Size, s.number),
		start: unsafe.Add(in.start, block.Offset),
	}}
	if site == 0 {
		p.ledger.Note(event.KindAlloc, p.core.Owner(), block.Segment, block.Offset, block.Size, bytes)
	} else {
		p.absorbAt(block, bytes, site)
	}
	if p.watched {
		addressedPool{p}.noteAlloc(b)
		poolEvents{p}.release()
		return b, nil
	}
	p.mu.Unlock()
	return b, nil
}

// refuse unlocks a closed pool and returns ErrClosed.
func (p *Pool) refuse() error {
	p.mu.Unlock()
	return errPoolClosed
}

// absorbAt records an allocation with its call site. p.mu is held.
func (p *Pool) absorbAt(block alloc.Block, bytes int64, site uint32) {
	p.ledger.Absorb(&event.Event{
		Kind: event.KindAlloc, Stream: p.core.Owner(), Segment: block.Segment,
		Offset: block.Offset, Size: block.Size, Requested: bytes,
	}, site)
}

// allocSlowly completes an allocation that needs more than a free block: deferred blocks that are
// reclaimed, a new segment, or free memory of other streams. p.mu is held.
func (p *Pool) allocSlowly(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, err error, site uint32,
) (alloc.Block, error) {
	for {
		if reclaimErr := p.reclaim(s); reclaimErr != nil {
			return alloc.Block{}, reclaimErr
		}
		if err == nil && growth.Bytes == 0 {
			return block, nil
		}
		if err != nil {
			err = outOfMemoryError(err, nil)
		} else if err = p.growOrLess(s, growth, site); err != nil {
			err = p.growFailed(s, bytes, err)
		}
		if err = p.seize(s, bytes, err); err != nil {
			return alloc.Block{}, sizeError("allocating", bytes, err)
		}
		block, growth, err = p.core.Alloc(bytes, s.number)
	}
}

// sizeError adds the requested size to an error, unless the core's error contains it.
func sizeError(doing string, bytes int64, err error) error {
	if errors.Is(err, alloc.ErrSize) {
		return err
	}
	return fmt.Errorf("%s %s: %w", doing, driver.Plural(bytes, "byte"), err)
}

// growOrLess maps a segment or, if the device has too little memory, a smaller one that satisfies
// the request. p.mu is held.
func (p *Pool) growOrLess(s *Stream, growth alloc.Growth, site uint32) error {
	for {
		err := p.grow(s, growth, site)
		if !errors.Is(err, driver.ErrOutOfMemory) || !p.core.Shrink(&growth) {
			return err
		}
	}
}

// growFailed adds the pool's sizes to an ErrOutOfMemory of the device.
func (p *Pool) growFailed(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}
	return outOfMemoryError(p.core.GrowFailed(bytes, s.number), err)
}

// grow maps a segment for the call that needs it. p.mu is held.
func (p *Pool) grow(s *Stream, growth alloc.Growth, site uint32) error {
	if growth.Bytes > p.space-p.next {
		return &driver.OutOfMemoryError{Requested: growth.Bytes, Cause: syscall.ENOMEM}
	}
	memory, err := p.arena.Map(p.next, growth.Bytes)
	if err != nil {
		return err
	}
	ordinal, err := p.core.AddSegment(growth, uint64(memory.Address()))
	if err != nil {
		return errors.Join(err, memory.Unmap())
	}
	p.next += growth.Bytes
	address := memory.Address()
	p.segments = append(p.segments, &segment{
		memory: memory, start: *(*unsafe.Pointer)(unsafe.Pointer(&address)),
		ordinal: ordinal, bytes: growth.Bytes, stream: p.core.Number(s.number), holds: 1,
	})
	p.ledger.Absorb(&event.Event{
		Kind: event.KindSegment, Stream: p.core.Number(s.number), Segment: ordinal,
		Size: growth.Bytes, Requested: growth.Bytes,
	}, site)
	for _, m := range p.members {
		m.setPending()
	}
	notify(p.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentAlloc },
		p.segmentEvent(p.segments[ordinal]))
	return nil
}

func (p *Pool) segmentEvent(s *segment) SegmentEvent {
	return SegmentEvent{
		Pool: p, Segment: int(s.ordinal), Address: uintptr(s.start), Bytes: s.bytes,
	}
}

// Reserve maps memory so that the given number of further bytes can be allocated on the default
// stream without growing. If the group is not nil, Reserve is collective and registers the memory.
func (p *Pool) Reserve(ctx context.Context, bytes int64, g *Group) error {
	return p.ReserveOn(ctx, p.rt.stream, bytes, g)
}

// ReserveOn is like Reserve, for a given stream. No other stream can use the reserved memory,
// unless the pool is realigned after a fault.
func (p *Pool) ReserveOn(ctx context.Context, s *Stream, bytes int64, g *Group) error {
	ctx = orBackground(ctx)
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.ofCaller()
	}
	return p.reserveFor(ctx, s, bytes, g, site)
}

// reserveFor reserves memory and records the call site, or none if site is 0.
func (p *Pool) reserveFor(
	ctx context.Context, s *Stream, bytes int64, g *Group, site uint32,
) error {
	if s == nil || s.rt != p.rt {
		return invalid("reserving memory on a stream of another runtime")
	}
	in, err := enter(p, nil)
	if err != nil {
		return sizeError("reserving", bytes, err)
	}
	defer in.leave(p, nil)
	if g != nil && g.rt == p.rt && (suspectPool{p}).suspect(&g.roster) {
		if err := p.registerInCall(ctx, g); err != nil {
			return err
		}
	}
	for { // repeat if the pool has been realigned meanwhile, which drops reservations
		before := suspectPool{p}.rebuilds()
		if err := p.reserve(s, bytes, site); err != nil {
			return sizeError("reserving", bytes, err)
		}
		if g == nil {
			return nil
		}
		err := p.registerInCall(ctx, g)
		if err != nil || before == (suspectPool{p}).rebuilds() {
			return err
		}
	}
}

// reserve maps memory for a call that has entered the pool.
func (p *Pool) reserve(s *Stream, bytes int64, site uint32) error {
	p.mu.Lock()
	defer poolEvents{p}.release()
	growth, err := p.core.Reserve(bytes, s.number)
	if err != nil {
		return outOfMemoryError(err, nil)
	}
	p.ledger.Absorb(&event.Event{
		Kind: event.KindReserve, Stream: p.core.Number(s.number), Segment: -1, Size: growth.Bytes,
		Requested: bytes,
	}, site)
	if growth.Bytes == 0 {
		return nil
	}
	err = p.grow(s, growth, site)
	if errors.Is(err, driver.ErrOutOfMemory) && p.core.ReserveClean(bytes, s.number) {
		return nil
	}
	return p.growFailed(s, bytes, err)
}

// Close deregisters all segments and unmaps those without live buffers. A second Close does
// nothing.
//
// Close waits for calls of other goroutines that use buffers of the pool, including registrations,
// and for the work that this rank has queued on any stream. Calls that begin meanwhile return
// ErrClosed. If the calls and the work have not ended after twice Options.Timeout, Close returns a
// TimeoutError and the pool remains open.
//
// Buffers that have not been freed remain usable through a View, a pointer or kernels. They can be
// freed after Close; any other call with them returns ErrClosed. A segment with such buffers stays
// mapped, as memory of this process, until its last buffer is freed or the process ends. The
// addresses of these segments and the addresses between them are not reused. On GPUs the memory
// also keeps the GPU's primary context alive.
func (p *Pool) Close() error { return p.closeAfter(p.rt.streams.drain) }

// closeAfter implements Close with a given function that waits for the work of this rank.
func (p *Pool) closeAfter(wait func(context.Context) error) error {
	if p.isClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closingTime(p.rt.opts.Timeout))
	defer cancel()
	defer poolEvents{p}.deliver()
	err := refuse(ctx, &p.calls)
	if err == nil {
		if err = wait(ctx); err != nil {
			p.calls.Open()
		}
	}
	if err != nil {
		return fmt.Errorf("closing a pool: %w", asTimeoutError(err, p.rt.opts.Timeout))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for _, s := range p.segments {
		if s != nil {
			errs = append(errs, p.deregister(s))
		}
	}
	for _, g := range p.rt.registry.allGroups() {
		g.windows.forget(p)
	}
	p.rt.registry.forgetPool(p)
	return joinDistinct(append(errs, p.releaseMemory())...)
}
