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

// PoolOptions adjust NewPool. The zero value makes a pool without a domain.
type PoolOptions struct {
	// Domain is the group whose ranks promise to make the same requests of this pool in the same
	// order. nil makes a pool whose memory is never registered.
	Domain *Group
	// Capacity is the most bytes the pool may map; 0 means no limit but the device's.
	Capacity int64
	// Placement is the order among equally large free blocks.
	Placement Placement
	// FirstSegment is the size of the first segment in bytes; 0 means 64 MiB. Each further one is
	// as large as all before it together, so that n bytes make O(log n) segments. Streams share
	// them; docs/design/placement.md has the most that is mapped.
	FirstSegment int64
	// Sizing is how large segments are, and how blocks are cut from them.
	Sizing Sizing
}

// Pool is a caching allocator of buffers over the segments of one arena.
//
// A segment goes: mapped (any Alloc may map one), pending for a group until the end of a scope or
// the group's first collective on it, registered with that group (a window), and finally, by Trim
// or Close, deregistered from all groups and unmapped.
//
// It is safe for concurrent use. Concurrent requests of several goroutines have no defined order,
// so a program that wants symmetric buffers allocates from one goroutine, or orders the requests.
// Allocation never waits for another rank.
type Pool struct {
	rt     *Runtime
	id     uint64
	number uint64 // in events: id, or, without a domain, the number of such pools made before
	domain *Group
	arena  driver.Arena
	space  int64 // bytes of the arena

	mu        ranked.Spin[poolMu]
	core      *alloc.Core                        // guarded by mu
	ledger    *ledger.Ledger                     // guarded by mu
	segments  []*segment                         // by ordinal, nil once trimmed; guarded by mu
	next      int64                              // arena offset of the next segment; guarded by mu
	useEvents map[alloc.StreamPoint]driver.Event // of uses of deferred blocks, or nil; guarded by mu
	members   map[*Group]*membership             // groups that register here; guarded by mu
	closed    bool                               // guarded by mu
	suspicion suspicion                          // guarded by mu
	kept      map[*segment]int                   // live buffers after Close; guarded by mu
	addresses addressIndex                       // guarded by mu
	watched   bool                               // there is an index or a hook; guarded by mu
	outbox    outbox                             // guarded by mu
	// frees counts the buffers freed; written with mu held, read without.
	frees atomic.Uint64
	calls spin.Gate // counts the calls under way with the pool's memory; shut once Close begins
}

// segment is a mapped segment.
type segment struct {
	memory driver.Segment
	start  unsafe.Pointer
	// ordinal numbers the segments of the pool from 0. None is given out again.
	ordinal int32
	bytes   int64
	stream  uint32 // number, in the pool, of the stream that it was mapped for
	// releasing reports whether it is about to be unmapped, so that it is not registered any more;
	// guarded by Pool.mu.
	releasing bool
	// holds counts the users that need it mapped: the pool, until Trim, and registrations in
	// progress; guarded by Pool.mu.
	holds int
}

// registrable reports whether a segment of the list of its pool is still there to be registered.
// Pool.mu is held.
func (s *segment) registrable() bool { return s != nil && !s.releasing }

// arenaSizes are how many addresses a pool reserves, in bytes: the first is more than any device
// has memory, since addresses of trimmed segments are not used again. Where addresses are rationed
// (ulimit -v, many pools) it makes do with less.
var arenaSizes = []int64{1 << 40, 1 << 34, 1 << 32, 1 << 30}

// newArena reserves as many addresses as possible.
func newArena(d driver.Device) (arena driver.Arena, bytes int64, err error) {
	for _, bytes = range arenaSizes {
		arena, err = d.NewArena(bytes)
		if !errors.Is(err, syscall.ENOMEM) {
			break
		}
	}
	return arena, bytes, err
}

// NewPool makes a pool. With a domain it is collective in the sense that every rank of the domain
// makes its pools in the same order. It does not wait for other ranks.
func (rt *Runtime) NewPool(o PoolOptions) (*Pool, error) {
	if err := rt.making.begin(); err != nil {
		return nil, err
	}
	defer rt.making.done()
	if o.Domain != nil && o.Domain.rt != rt {
		return nil, invalid("making a pool: its domain is a group of another runtime")
	}
	if o.Domain != nil && rt.made.poolsOf(o.Domain) >= agreement.MaxLedgers {
		return nil, invalid("making a pool: group %s is the domain of %d already, as many as an "+
			"agreement compares", o.Domain.id, agreement.MaxLedgers)
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
	rt.made.addPool(p)
	return p, nil
}

func (o PoolOptions) config(granularity int64) alloc.Config {
	return alloc.Config{
		Policy: alloc.Policy(o.Placement), Sizing: alloc.Sizing(o.Sizing), Capacity: o.Capacity,
		First: o.FirstSegment, Granularity: granularity,
	}
}

// Domain returns the group whose ranks make the same requests, or nil.
func (p *Pool) Domain() *Group { return p.domain }

// Alloc returns a buffer of at least the given size for use on the default stream. Its contents are
// undefined.
//
// Errors: ErrSize, OutOfMemoryError, ErrClosed.
func (p *Pool) Alloc(bytes int64) (Buffer, error) { return p.AllocOn(p.rt.stream, bytes) }

// AllocOn is Alloc for use on a given stream. The memory may still be in use by earlier work of
// that stream.
func (p *Pool) AllocOn(s *Stream, bytes int64) (Buffer, error) {
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.ofCaller()
	}
	return p.alloc(s, bytes, site)
}

// alloc allocates for a call site, or 0.
func (p *Pool) alloc(s *Stream, bytes int64, site uint32) (Buffer, error) {
	if s == nil || s.rt != p.rt {
		return Buffer{}, invalid("allocating on a stream of another runtime")
	}
	// No defer, and what is seldom called apart: this is the hot path of every allocation.
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

// refuse gives back the lock of a pool that is closed.
func (p *Pool) refuse() error {
	p.mu.Unlock()
	return errPoolClosed
}

// absorbAt notes an allocation with its call site. p.mu is held.
func (p *Pool) absorbAt(block alloc.Block, bytes int64, site uint32) {
	p.ledger.Absorb(&event.Event{
		Kind: event.KindAlloc, Stream: p.core.Owner(), Segment: block.Segment,
		Offset: block.Offset, Size: block.Size, Requested: bytes,
	}, site)
}

// allocSlowly completes an allocation that needs more than a free block: blocks that come back
// under pressure, a new segment, or what is free on other streams. p.mu is held.
func (p *Pool) allocSlowly(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, err error, site uint32,
) (alloc.Block, error) {
	for {
		if backErr := p.reclaim(s); backErr != nil {
			return alloc.Block{}, backErr
		}
		if err == nil && growth.Bytes == 0 {
			return block, nil
		}
		if err != nil {
			err = exhausted(err, nil)
		} else if err = p.growOrLess(s, growth, site); err != nil {
			err = p.growFailed(s, bytes, err)
		}
		if err = p.seize(s, bytes, err); err != nil {
			return alloc.Block{}, sizeError("allocating", bytes, err)
		}
		block, growth, err = p.core.Alloc(bytes, s.number)
	}
}

// sizeError adds the requested size to an error, unless the error of the core has it.
func sizeError(doing string, bytes int64, err error) error {
	if errors.Is(err, alloc.ErrSize) {
		return err
	}
	return fmt.Errorf("%s %s: %w", doing, driver.Plural(bytes, "byte"), err)
}

// growOrLess maps a segment, or a smaller one that holds the request where the device has no more.
// p.mu is held.
func (p *Pool) growOrLess(s *Stream, growth alloc.Growth, site uint32) error {
	for {
		err := p.grow(s, growth, site)
		if !errors.Is(err, driver.ErrOutOfMemory) || !p.core.Shrink(&growth) {
			return err
		}
	}
}

// growFailed adds the pool's figures to an ErrOutOfMemory of the device.
func (p *Pool) growFailed(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}
	return exhausted(p.core.GrowFailed(bytes, s.number), err)
}

// grow maps a segment, for the call that needs it. p.mu is held.
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
		m.due()
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

// ReserveOn is Reserve for a given stream. No other stream gets any of that memory, until a fault
// has the pool realigned.
func (p *Pool) ReserveOn(ctx context.Context, s *Stream, bytes int64, g *Group) error {
	ctx = orBackground(ctx)
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.ofCaller()
	}
	return p.reserveFor(ctx, s, bytes, g, site)
}

// reserveFor reserves for a call site, or 0.
func (p *Pool) reserveFor(
	ctx context.Context, s *Stream, bytes int64, g *Group, site uint32,
) error {
	if s == nil || s.rt != p.rt {
		return invalid("reserving memory on a stream of another runtime")
	}
	if g != nil && g.rt == p.rt && (suspectPool{p}).suspect(&g.roster) {
		if err := p.Register(ctx, g); err != nil {
			return err
		}
	}
	for { // again where pools were realigned since, which ends reservations
		before := suspectPool{p}.rebuilds()
		if err := p.reserve(s, bytes, site); err != nil {
			return sizeError("reserving", bytes, err)
		}
		if g == nil {
			return nil
		}
		err := p.Register(ctx, g)
		if err != nil || before == (suspectPool{p}).rebuilds() {
			return err
		}
	}
}

func (p *Pool) reserve(s *Stream, bytes int64, site uint32) error {
	p.mu.Lock()
	defer poolEvents{p}.release()
	if err := p.usable(); err != nil {
		return err
	}
	growth, err := p.core.Reserve(bytes, s.number)
	if err != nil {
		return exhausted(err, nil)
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
// Close waits for calls of other goroutines that use buffers of the pool, registrations included,
// and for the work that this rank has queued on any stream. Calls that begin meanwhile return
// ErrClosed. If one of these has not ended after twice Options.Timeout, Close returns a
// TimeoutError and the pool stays open.
//
// Memory of buffers that were not freed stays usable through a View, a pointer or kernels. Its
// segment stays mapped, and counts as memory of this process, until Free of its last buffer, which
// works after Close, or until the process ends. Any other call with such a buffer returns
// ErrClosed. The addresses of these segments, and those between them, are not reused. On GPUs the
// memory also keeps the GPU's primary context alive.
func (p *Pool) Close() error { return p.closeAfter(p.rt.streams.drain) }

// closeAfter is Close with another wait for the work of this rank.
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
		return fmt.Errorf("closing a pool: %w", unended(err, p.rt.opts.Timeout))
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
	for _, g := range p.rt.made.allGroups() {
		g.windows.forget(p)
	}
	p.rt.made.forgetPool(p)
	return once(append(errs, p.releaseMemory())...)
}
