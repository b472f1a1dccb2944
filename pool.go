package symmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
	"symmem/internal/spin"
)

// PoolOptions configures NewPool.
type PoolOptions struct {
	// Domain is the group whose ranks must make the same requests to this pool in the same order.
	// Without a domain, the pool's memory is never registered.
	Domain *Group
	// Capacity is the maximum number of bytes to map; 0 means no limit.
	Capacity  int64
	Placement Placement
	// FirstSegment is the size of the first segment in bytes; 0 selects 64 MiB. Later segments are
	// as large as all earlier ones together.
	FirstSegment int64
	Sizing       Sizing
}

// Pool is a caching allocator of buffers, which maps memory in segments. A group registers a
// segment, which creates a window, at the end of a scope or in its first collective on it.
//
// A Pool is safe for concurrent use, but symmetric buffers require the same order of requests on
// all ranks. Allocation never waits for another rank. While it maps a segment, other calls that use
// the pool wait.
type Pool struct {
	rt     *Runtime
	id     uint64
	domain *Group

	mu     ranked.Spin[poolMu] // guards fields of the structs below
	core   *alloc.Core         // guarded by mu
	ledger *ledger.Ledger      // guarded by mu
	// frees counts freed buffers. It is written with mu held.
	frees atomic.Uint64
	// calls counts calls that use the memory. It refuses them while the pool is suspended or
	// closed.
	calls spin.Gate

	// The following fields use only fields declared before them.
	events    poolEvents
	segments  segmentTable
	history   history
	suspicion suspicion
	registrar registrar
	uses      useTracker
	heap      heap
	addresses addresses
	realigner realigner
	trimmer   trimmer
	suspender suspender
}

// NewPool creates a pool. Every rank of a domain must create its pools in the same order. NewPool
// does not wait for other ranks.
func (rt *Runtime) NewPool(o PoolOptions) (*Pool, error) {
	if err := rt.registry.beginCreation(); err != nil {
		return nil, err
	}

	defer rt.registry.endCreation()
	if o.Domain != nil && o.Domain.rt != rt {
		return nil, invalid("creating a pool: its domain is a group of another runtime")
	}

	if o.Domain != nil && rt.registry.countPools(o.Domain) >= agreement.MaxLedgers {
		return nil, invalid("creating a pool: group %s is already the domain of %d pools, the maximum",
			o.Domain.id, agreement.MaxLedgers)
	}

	core, err := alloc.New(o.config(rt.device.Info().Granularity))
	if err != nil {
		return nil, invalid("creating a pool: %v", err)
	}

	arena, space, err := reserveArena(rt.device)
	if err != nil {
		return nil, fmt.Errorf("creating a pool: %w", err)
	}

	p := &Pool{rt: rt, domain: o.Domain, core: core, ledger: ledger.New(0)}
	p.segments.arena, p.segments.arenaBytes = arena, space
	p.connect()
	rt.registry.addPool(p)
	return p, nil
}

func (p *Pool) connect() {
	rt, mu := p.rt, &p.mu
	p.events = poolEvents{
		active: rt.recording.isActive(), mu: mu, rt: rt, core: p.core, ledger: p.ledger,
	}
	p.events.outbox.opts, p.events.outbox.pool = &rt.opts, mu
	p.events.outbox.common.Rank = int32(rt.rank)
	if p.domain != nil {
		p.events.outbox.common.Group = p.domain.id
	}

	rt.recording.connect(&p.events.outbox)
	p.segments.mu, p.segments.pool, p.segments.rt = mu, p, rt
	p.segments.events = &p.events
	p.history = history{mu: mu, domain: p.domain, ledger: p.ledger, events: &p.events}
	p.suspicion = suspicion{mu: mu, domain: p.domain}
	p.registrar = registrar{
		mu: mu, pool: p, rt: rt, domain: p.domain, memberships: map[*Group]*membership{},
		segments: &p.segments, suspicion: &p.suspicion, history: &p.history, events: &p.events,
	}
	p.uses = useTracker{
		mu: mu, core: p.core, ledger: p.ledger, events: &p.events, segments: &p.segments,
		streams: &rt.streams, useEndEvents: map[alloc.StreamPoint]driver.Event{},
	}
	p.heap = heap{
		core: p.core, ledger: p.ledger, segments: &p.segments, uses: &p.uses,
		streams: &rt.streams, registrar: &p.registrar,
	}
	p.addresses = addresses{mu: mu, pool: p, heap: &p.heap, events: &p.events}
	p.realigner = realigner{
		mu: mu, history: &p.history, suspicion: &p.suspicion, heap: &p.heap, events: &p.events,
	}
	p.trimmer = trimmer{
		mu: mu, pool: p, heap: &p.heap, segments: &p.segments, registrar: &p.registrar,
		streams: &rt.streams,
	}
	p.suspender = suspender{
		mu: mu, pool: p, segments: &p.segments, registrar: &p.registrar, history: &p.history,
	}
}

func (p *Pool) identify(id, number uint64) {
	p.id, p.history.id, p.events.outbox.common.Pool = id, id, number
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
// undefined. Alloc returns ErrSize, an OutOfMemoryError or ErrClosed.
func (p *Pool) Alloc(bytes int64) (Buffer, error) { return p.AllocOn(p.rt.stream, bytes) }

// AllocOn is Alloc for a given stream. Earlier work of that stream may still be using the memory.
func (p *Pool) AllocOn(s *Stream, bytes int64) (Buffer, error) {
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.callerSite()
	}

	return p.alloc(s, bytes, site)
}

func (p *Pool) alloc(s *Stream, bytes int64, site uint32) (Buffer, error) {
	if s == nil || s.rt != p.rt {
		return Buffer{}, invalid("allocating on a stream of another runtime")
	}

	// This function must be fast, so it has no defer and leaves rare cases to other functions.
	p.mu.Lock()
	if p.segments.refusing {
		return Buffer{}, unlockAndRefuse(p)
	}

	block, growth, err := p.core.Alloc(bytes, s.number)
	if err != nil || growth.Bytes != 0 || p.core.HasReports() {
		if block, err = p.heap.alloc(s, bytes, block, growth, err, site); err != nil {
			p.events.unlock()
			return Buffer{}, err
		}
	}

	seg := p.segments.list[block.Segment]
	b := Buffer{Memory{
		pool: p, handle: block.Handle, extent: newExtent(block.Size, s.number),
		start: unsafe.Add(seg.start, block.Offset),
	}}
	if site == 0 {
		p.ledger.AppendWithoutSite(
			event.KindAlloc, p.core.Owner(), block.Segment, block.Offset, block.Size, bytes)
	} else {
		p.recordAllocAt(block, bytes, site)
	}

	if p.events.active {
		p.addresses.recordAlloc(b)
		p.events.unlockAfterOne()
		return b, nil
	}

	p.mu.Unlock()
	return b, nil
}

func (p *Pool) recordAllocAt(block alloc.Block, bytes int64, site uint32) {
	p.ledger.Append(&event.Event{
		Kind: event.KindAlloc, Stream: p.core.Owner(), Segment: block.Segment,
		Offset: block.Offset, Size: block.Size, Requested: bytes,
	}, site)
}

// Reserve maps memory for allocations of the given size on the default stream. With a group, it
// registers the memory, and all ranks of the group must call it.
func (p *Pool) Reserve(ctx context.Context, bytes int64, g *Group) error {
	return p.ReserveOn(ctx, p.rt.stream, bytes, g)
}

// ReserveOn is Reserve for a given stream. No other stream can use the reserved memory, unless the
// pool is realigned after a fault.
func (p *Pool) ReserveOn(ctx context.Context, s *Stream, bytes int64, g *Group) error {
	ctx = orBackground(ctx)
	var site uint32
	if p.rt.opts.CallSites {
		site = p.rt.sites.callerSite()
	}

	return p.reserveFor(ctx, s, bytes, g, site)
}

func (p *Pool) reserveFor(
	ctx context.Context, s *Stream, bytes int64, g *Group, site uint32,
) error {
	if s == nil || s.rt != p.rt {
		return invalid("reserving memory on a stream of another runtime")
	}

	v, err := enterPools(p, nil)
	if err != nil {
		return sizeError("reserving", bytes, err)
	}
	defer v.leave(p, nil)
	if g != nil && g.rt == p.rt && p.suspicion.isSuspectFor(&g.roster) {
		if err := p.registrar.registerInCall(ctx, g); err != nil {
			return err
		}
	}

	for { // repeat after a realignment, which drops reservations
		realignments := p.suspicion.realignmentCount()
		if err := p.reserve(s, bytes, site); err != nil {
			return sizeError("reserving", bytes, err)
		}

		if g == nil {
			return nil
		}

		err := p.registrar.registerInCall(ctx, g)
		if err != nil || realignments == p.suspicion.realignmentCount() {
			return err
		}
	}
}

func (p *Pool) reserve(s *Stream, bytes int64, site uint32) error {
	p.mu.Lock()
	defer p.events.unlock()
	return p.heap.reserve(s, bytes, site)
}

// Register registers all segments that the group has not registered yet. If there are any, all
// ranks of the group must call it; otherwise, it does not communicate. Existing windows stay
// registered in case of a fault. During a capture on any rank, every rank returns ErrCapturing.
func (p *Pool) Register(ctx context.Context, g *Group) error {
	ctx = orBackground(ctx)
	m, err := p.registrar.ensureMembership(g)
	if err != nil {
		return fmt.Errorf("registering: %w", err)
	}

	if !m.hasPending.Load() {
		return nil
	}

	return p.registerPending(ctx, m)
}

func (p *Pool) registerPending(ctx context.Context, m *membership) error {
	v, err := enterPools(p, nil)
	if err != nil {
		return fmt.Errorf("registering with group %s: %w", m.group.id, err)
	}
	defer v.leave(p, nil)
	return p.registrar.register(ctx, m)
}

// Trim unmaps segments without live buffers, newest first, but leaves at least keep bytes mapped.
// All ranks of the domain must call it. Each rank first waits for its queued work; if that takes
// too long, the segments stay mapped until a later Trim or Close, as do those that graphs use.
// During another library's capture on any rank, all ranks return ErrCapturing. Trim and Close also
// return the errors of unmappings that an earlier Trim has left to calls that used the segments.
func (p *Pool) Trim(ctx context.Context, keep int64) error {
	defer deliverAll(p.rt)
	err := p.trimmer.trim(orBackground(ctx), keep)
	return errors.Join(err, p.segments.takeUnreported())
}

// Suspend releases the pool's memory until Resume, and returns how much memory it has released on
// this rank. All ranks of the domain must call it. Buffers keep their addresses, captured graphs
// stay valid, and windows stay registered. A second Suspend does nothing.
//
// Suspend waits for calls that use the pool and for work on this rank's streams, each for a second
// or a quarter of the timeout. If that does not suffice on some rank, all ranks return an ErrBusy
// that names the work, as they do while an open graph contains calls on the window path or, unless
// the variable NCCL_GRAPH_REGISTER is 0, on the plain path. They return ErrCapturing during a
// capture, and ErrOutOfMemory without enough host memory for KeepContents. After any of these
// errors, the pool remains usable.
//
// While a pool is suspended, calls that use its memory return ErrSuspended, except for Free, Stats
// and Close. The program must not access the memory in another way: on GPUs, that destroys the CUDA
// context. If the domain fails during Suspend, Resume makes the pool usable again.
func (p *Pool) Suspend(ctx context.Context, c Contents) (Suspension, error) {
	if c != DiscardContents && c != KeepContents {
		return Suspension{}, invalid("suspending a pool: contents choice %d is unknown", c)
	}

	defer deliverAll(p.rt)
	released, err := p.suspender.suspend(orBackground(ctx), c)
	if err != nil {
		err = fmt.Errorf("suspending a pool: %w", err)
	}

	return released, err
}

// Resume maps new memory at the same addresses. All ranks of the domain and of groups with windows
// in the pool must call it. If any rank has too little memory, all ranks return ErrOutOfMemory, and
// the pool stays suspended. If the domain has failed, Resume maps this rank's memory and returns
// the fault; this rank can then use the pool, and its windows in groups that have not failed. If
// the pool is not suspended, Resume does nothing.
func (p *Pool) Resume(ctx context.Context) error {
	defer deliverAll(p.rt)
	if err := p.suspender.resume(orBackground(ctx)); err != nil {
		return fmt.Errorf("resuming a pool: %w", err)
	}

	return nil
}

// Suspended reports whether the pool is suspended on this rank.
func (p *Pool) Suspended() bool { return p.suspender.state.Load() != stateOpen }

// Stats returns the pool's sizes and counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return poolStats(p)
}

func poolStats(p *Pool) PoolStats {
	s, windows := p.core.Stats(), 0
	for _, m := range p.registrar.memberships {
		windows += len(m.windows)
	}

	return PoolStats{
		Used: s.Used, Requested: s.Requested, HighWater: s.UsedPeak, Cached: s.Cached,
		LargestFree: s.LargestFree, Deferred: s.Deferred, Pinned: s.Pinned,
		Segments: s.Segments, Windows: windows, Events: p.ledger.Position(),
	}
}

// Segments returns the current segments, ordered by ordinal.
func (p *Pool) Segments() iter.Seq[SegmentEvent] {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []SegmentEvent
	for _, s := range p.segments.mappedSegments() {
		all = append(all, p.segments.newSegmentEvent(s))
	}

	return slices.Values(all)
}

// Close deregisters all segments and unmaps those without live buffers. It waits for calls that use
// the pool, also in Suspend and Resume, and for this rank's work on any stream. Calls that begin in
// the meantime return ErrClosed. After twice Options.Timeout, Close returns a TimeoutError and the
// pool remains open. A second Close does nothing.
//
// Live buffers can still be freed, and used through a View, a pointer or kernels; other calls with
// them return ErrClosed. Their segments stay mapped until the last buffer is freed or the process
// exits. Until then, the pool's addresses are not reused, and on GPUs, the primary context exists.
// There, the memory of plain calls in open graphs stays mapped until the graphs are closed.
func (p *Pool) Close() error { return p.closeAfter(p.rt.streams.drain) }

// closeAfter calls wait to wait for the work of this rank.
func (p *Pool) closeAfter(wait func(context.Context) error) error {
	if p.segments.awaitEnd() {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout(p.rt.opts.Timeout))
	defer cancel()
	defer p.events.deliver()
	p.suspender.addCloseCalls(1)
	defer p.suspender.addCloseCalls(-1)
	err := closeGate(ctx, &p.calls)
	if err == nil {
		if err = cmp.Or(p.suspender.awaitStateChange(ctx), wait(ctx)); err != nil {
			p.calls.Open()
		}
	}

	if err != nil {
		return fmt.Errorf("closing a pool: %w", toTimeoutError(err, p.rt.opts.Timeout))
	}

	err = p.segments.end(func() (calls unlockedCalls) {
		if p.segments.closed {
			return nil
		}

		p.segments.closed, p.segments.refusing = true, true
		p.suspender.state.Store(stateOpen)
		for _, s := range p.segments.mappedSegments() {
			calls = append(calls, p.registrar.deregister(s)...)
		}

		for _, g := range p.rt.registry.allGroups() {
			g.windows.dropPool(p)
		}

		calls = append(calls, p.segments.close(p.heap.countLiveBlocks())...)
		// Last, so that Runtime.Close and Group.Close still find the pool and wait for it.
		return append(calls, func() error {
			p.rt.registry.removePool(p)
			return nil
		})
	})
	return joinWithoutDuplicates(err, p.segments.takeUnreported())
}

// checkOpen returns an error if the pool is closed or suspended. Between enterPools and leave, the
// pool stays open.
func (p *Pool) checkOpen() error {
	if p.calls.Closed() {
		return callRefusal(p)
	}

	return nil
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments.closed
}
