package symmem

import (
	"cmp"
	"context"
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
	// If it is nil, the pool's memory is never registered.
	Domain *Group
	// Capacity is the maximum number of bytes that the pool maps; 0 means no limit.
	Capacity  int64
	Placement Placement
	// FirstSegment is the size of the first segment in bytes; 0 selects 64 MiB. Each later segment
	// is as large as all earlier segments together; see docs/design/placement.md.
	FirstSegment int64
	// Sizing determines the sizes of segments and how they are split into blocks.
	Sizing Sizing
}

// Pool is a caching allocator of buffers.
//
// Any Alloc may map a new segment of memory. A group registers the segment at the end of a scope or
// in the group's first collective on it, which creates a window. Trim or Close deregisters the
// segment from all groups and unmaps it.
//
// A Pool is safe for concurrent use. Symmetric buffers require the same order of requests on all
// ranks, so a program must allocate them on one goroutine or order its requests in another way.
// Allocation never waits for another rank.
type Pool struct {
	rt     *Runtime
	id     uint64
	domain *Group

	mu     ranked.Spin[poolMu] // guards fields of the structs below
	core   *alloc.Core         // guarded by mu
	ledger *ledger.Ledger      // guarded by mu
	// frees counts freed buffers. It is written with mu held but read without it.
	frees atomic.Uint64
	// calls counts the calls that use the pool's memory. It refuses new calls while the pool is
	// suspended or closed.
	calls spin.Gate

	// Each of the following fields uses only fields declared before it.
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

// NewPool creates a pool. Every rank of a domain must create the domain's pools in the same order.
// NewPool does not wait for other ranks.
func (rt *Runtime) NewPool(o PoolOptions) (*Pool, error) {
	if err := rt.creation.beginCall(); err != nil {
		return nil, err
	}
	defer rt.creation.endCall()
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
		active: rt.recording.active(), mu: mu, rt: rt, core: p.core, ledger: p.ledger,
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
	if err != nil || growth.Bytes != 0 || p.core.Reported() {
		if block, err = p.heap.alloc(s, bytes, block, growth, err, site); err != nil {
			p.events.release()
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
		p.noteAllocAt(block, bytes, site)
	}
	if p.events.active {
		p.addresses.recordAlloc(b)
		p.events.releaseOne()
		return b, nil
	}
	p.mu.Unlock()
	return b, nil
}

func (p *Pool) noteAllocAt(block alloc.Block, bytes int64, site uint32) {
	p.ledger.Append(&event.Event{
		Kind: event.KindAlloc, Stream: p.core.Owner(), Segment: block.Segment,
		Offset: block.Offset, Size: block.Size, Requested: bytes,
	}, site)
}

// Reserve maps memory so that the given number of bytes can be allocated on the default stream
// without mapping more. If the group is not nil, Reserve is collective and registers the memory.
func (p *Pool) Reserve(ctx context.Context, bytes int64, g *Group) error {
	return p.ReserveOn(ctx, p.rt.stream, bytes, g)
}

// ReserveOn is like Reserve, for a given stream. No other stream can use the reserved memory,
// unless the pool is realigned after a fault.
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
		rebuilds := p.suspicion.rebuildCount()
		if err := p.reserve(s, bytes, site); err != nil {
			return sizeError("reserving", bytes, err)
		}
		if g == nil {
			return nil
		}
		err := p.registrar.registerInCall(ctx, g)
		if err != nil || rebuilds == p.suspicion.rebuildCount() {
			return err
		}
	}
}

func (p *Pool) reserve(s *Stream, bytes int64, site uint32) error {
	p.mu.Lock()
	defer p.events.release()
	return p.heap.reserve(s, bytes, site)
}

// Register registers all segments that the group has not registered yet. It is collective over the
// group. Without new segments it returns immediately and does not communicate.
//
// If Register returns a DivergenceError, TimeoutError or RankLostError on one rank, it returns the
// error on every rank of the group, and so do later calls. Existing windows stay registered. If any
// rank is capturing a stream, every rank returns ErrCapturing; nothing is registered, and the group
// remains usable.
func (p *Pool) Register(ctx context.Context, g *Group) error {
	ctx = orBackground(ctx)
	m, err := p.registrar.findMembership(g)
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
// It is collective over the domain. Each rank first waits for its queued work. If the work does not
// complete in time, the segments stay mapped until a later Trim or Close.
//
// A segment with a buffer that a graph uses is kept until the graph is closed, even if the buffer
// has been freed. If another library is capturing a stream of some rank, Trim returns ErrCapturing
// on all ranks and changes nothing.
func (p *Pool) Trim(ctx context.Context, keep int64) error {
	defer deliverAll(p.rt)
	return p.trimmer.trim(orBackground(ctx), keep)
}

// Suspend releases the pool's memory on all ranks of the domain, until Resume is called. It is
// collective over the domain. Buffers keep their addresses, captured graphs stay valid, and windows
// stay registered. Suspend returns how much memory it has released on this rank. If the pool is
// already suspended, Suspend does nothing.
//
// Suspend waits for calls that use the pool, and then for unfinished work on this rank's streams.
// Each wait takes at most a second, or a quarter of the timeout if that is less. If a call or work
// is then unfinished on some rank, all ranks return an ErrBusy that names the rank and the work.
// They also return ErrBusy while an open graph contains calls on the window path or, unless the
// environment variable NCCL_GRAPH_REGISTER is 0, on the plain path. They return ErrCapturing if any
// rank is capturing a stream, and ErrOutOfMemory if a rank has too little host memory for
// KeepContents. After any of these errors, the pool remains usable.
//
// While a pool is suspended, calls that use its memory return ErrSuspended. Free, Stats and Close
// still work. Nothing else may access the memory: neither other libraries and their graphs, nor the
// program itself through a pointer or a View. On GPUs, such an access destroys the CUDA context.
// Memory that Close keeps for live buffers is then not accessible either.
//
// If a rank is lost or late, Suspend returns a fault of the domain. If the pool is then suspended
// on this rank (see Suspended), Resume makes it usable again.
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

// Resume maps new memory for a suspended pool, at the same addresses. It is collective over the
// domain and over all groups with windows in the pool. If the pool is not suspended, Resume does
// nothing.
//
// If any rank has too little memory, all ranks return an ErrOutOfMemory that names the rank, and
// the pool stays suspended. If the domain has failed, Resume maps the memory of this rank and
// returns the fault. This rank can then use the pool, and its windows in groups that have not
// failed.
func (p *Pool) Resume(ctx context.Context) error {
	defer deliverAll(p.rt)
	if err := p.suspender.resume(orBackground(ctx)); err != nil {
		return fmt.Errorf("resuming a pool: %w", err)
	}
	return nil
}

// Suspended reports whether the pool is suspended on this rank.
func (p *Pool) Suspended() bool { return p.suspender.state.Load() != poolOpen }

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

// Segments returns the segments at the time of the call, ordered by ordinal.
func (p *Pool) Segments() iter.Seq[SegmentEvent] {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []SegmentEvent
	for _, s := range p.segments.mapped() {
		all = append(all, p.segments.newSegmentEvent(s))
	}
	return slices.Values(all)
}

// Close deregisters all segments and unmaps those without live buffers. A second Close does
// nothing.
//
// Close waits for calls of other goroutines that use the pool, also for Suspend and Resume, and for
// the work that this rank has queued on any stream. Calls that begin in the meantime return
// ErrClosed. If the calls and the work have not completed after twice Options.Timeout, Close
// returns a TimeoutError and the pool remains open.
//
// Buffers that have not been freed remain usable through a View, a pointer or kernels. They can be
// freed after Close; any other call with them returns ErrClosed. A segment with such buffers stays
// mapped until its last buffer is freed or the process exits. On GPUs, it also keeps the GPU's
// primary context alive. Until all buffers are freed, the pool's addresses are not reused.
func (p *Pool) Close() error { return p.closeAfter(p.rt.streams.drain) }

// closeAfter implements Close. wait waits for the work of this rank.
func (p *Pool) closeAfter(wait func(context.Context) error) error {
	if p.isClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout(p.rt.opts.Timeout))
	defer cancel()
	defer p.events.deliver()
	p.suspender.addCloseCalls(1)
	defer p.suspender.addCloseCalls(-1)
	err := refuse(ctx, &p.calls)
	if err == nil {
		if err = cmp.Or(p.suspender.awaitStateChange(ctx), wait(ctx)); err != nil {
			p.calls.Open()
		}
	}
	if err != nil {
		return fmt.Errorf("closing a pool: %w", asTimeoutError(err, p.rt.opts.Timeout))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments.closed {
		return nil
	}
	p.segments.closed, p.segments.refusing = true, true
	p.suspender.state.Store(poolOpen)
	var errs []error
	for _, s := range p.segments.mapped() {
		errs = append(errs, p.registrar.deregister(s))
	}
	for _, g := range p.rt.registry.allGroups() {
		g.windows.dropPool(p)
	}
	p.rt.registry.removePool(p)
	return joinWithoutDuplicates(append(errs, p.segments.close(p.heap.liveCounts()))...)
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments.closed
}
