package symmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/event"
)

// collective holds the arguments of a call and, after prepare, the backend's plan for it. A group
// keeps its latest plans for repeated calls.
type collective struct {
	send, recv Memory
	count      int64
	root, tag  int
	operation  driver.Operation
	dataType   DataType
	reduceOp   ReduceOp
	factor     float64
	choice     PathChoice
	site       uint32 // call site; ignored by sameCall
	wait       bool   // see Call.Wait; ignored by sameCall
	arrived    func(source int)
	splits     *Splits
	norm       *NormArgs
	routed     *RouteArgs // for Dispatch and Combine

	plan      driver.Plan // nil until prepare has run
	described *event.Call
	// revision is that of the group's windows when the plan was made.
	revision uint64
	// submit measures the calls of the plan.
	submit driver.Meter
	// frees is the freeCount when the buffers were last known to be live, accessed atomically.
	frees uint64
}

const unknownFrees = math.MaxUint64

type planner struct {
	roster
	rt      *Runtime
	group   *Group
	comm    driver.Communicator
	life    *lifetime
	windows *windows
	router  *router
	site    atomic.Uint32 // of the latest call, or 0
	timers  callTimers
	plans   [planSlots]atomic.Pointer[collective]
}

func (pl *planner) init(g *Group) {
	pl.roster, pl.rt, pl.group, pl.comm, pl.life = g.roster, g.rt, g, g.comm, g.life
	pl.windows, pl.router = &g.windows, g.router
}

func (pl *planner) latestSite() string { return pl.rt.sites.text(pl.site.Load()) }

// planSlots must be a power of two.
const planSlots = 256

// planSlot takes the address of a norm's weight or of a route's ids, or 0.
func (c *collective) planSlot(extra uintptr) uint64 {
	h := uint64(c.send.Address())>>6 ^ uint64(c.recv.Address())>>8 ^ uint64(extra)>>5 ^
		uint64(c.count)<<2 ^ uint64(c.operation)
	return (h * 0x9e3779b97f4a7c15) >> 56 & (planSlots - 1)
}

func (c *collective) extra() uintptr {
	switch {
	case c.norm != nil:
		return c.norm.Weight.Address()
	case c.routed != nil:
		return c.routed.IDs.Address()
	}

	return 0
}

// cachedPlan returns a kept call with a plan for c, or nil. Ranks may keep different plans, because
// slots depend on addresses. A kept plan must therefore not affect what a call registers or whether
// it is refused.
func (pl *planner) cachedPlan(c *collective) *collective {
	p := pl.plans[c.planSlot(c.extra())].Load()
	if p == nil || p.revision != pl.windows.revision.Load() || !p.sameCall(c) ||
		(c.splits != p.splits || c.norm != p.norm || c.routed != p.routed) && !p.sameExtras(c) {
		return nil
	}

	if frees := c.freeCount(); frees != atomic.LoadUint64(&p.frees) && !p.areBuffersLive(frees) {
		return nil
	}

	return p
}

// sameCall omits splits, norm and routed, so that it can be inlined.
func (c *collective) sameCall(o *collective) bool {
	return c.send == o.send && c.recv == o.recv && c.count == o.count &&
		c.operation == o.operation && c.dataType == o.dataType && c.reduceOp == o.reduceOp &&
		c.factor == o.factor && c.root == o.root && c.tag == o.tag && c.choice == o.choice &&
		o.arrived == nil
}

func (c *collective) sameExtras(o *collective) bool {
	return sameSplits(c.splits, o.splits) && c.norm == o.norm && c.routed == o.routed
}

// freeCount counts frees in the pools of send and recv.
func (c *collective) freeCount() (frees uint64) {
	if c.send.pool != nil {
		frees = c.send.pool.frees.Load()
	}

	if c.recv.pool != nil {
		frees += c.recv.pool.frees.Load()
	}

	return frees
}

// areBuffersLive stores frees in c.frees if all buffers of the call are live.
func (c *collective) areBuffersLive(frees uint64) bool {
	for _, m := range c.buffers() {
		if m.pool == nil {
			continue
		}

		if _, err := m.pool.blockOf(m); err != nil {
			return false
		}
	}

	if !c.hasOtherBuffers() { // freeCount omits these
		atomic.StoreUint64(&c.frees, frees)
	}

	return true
}

func (c *collective) hasOtherBuffers() bool { return c.norm != nil || c.routed != nil }

// otherBuffers is in the order of driver.Call.OtherSpans.
func (c *collective) otherBuffers() [4]Memory {
	switch {
	case c.norm != nil:
		return c.norm.otherBuffers()
	case c.routed != nil:
		return c.routed.otherBuffers()
	}

	return [4]Memory{}
}

func (c *collective) buffers() [6]Memory {
	o := c.otherBuffers()
	return [6]Memory{c.send, c.recv, o[0], o[1], o[2], o[3]}
}

// validatedCopy validates a call and copies it. If it fails, it fails on every rank.
func (pl *planner) validatedCopy(c *collective) (*collective, error) {
	p := new(collective)
	*p = *c
	p.frees = unknownFrees
	if c.splits != nil {
		p.splits = cloneSplits(c.splits)
	}

	call := p.call()
	if err := pl.validate(p, &call); err != nil {
		return nil, pl.wrapError(c, err)
	}

	return p, nil
}

// isGoMemory reports whether the memory is a Go slice of Host.
func (m Memory) isGoMemory() bool { return m.extent&hostFlag != 0 }

// isCacheable is false if the plan would keep Go slices reachable.
func (c *collective) isCacheable() bool {
	others := c.otherBuffers()
	if c.arrived != nil || slices.ContainsFunc(others[:], Memory.isGoMemory) {
		return false
	}

	if c.splits != nil {
		return !c.send.isGoMemory() && !c.recv.isGoMemory()
	}

	return c.count == 0 || c.send.pool != nil || c.recv.pool != nil ||
		!c.send.isGoMemory() && !c.recv.isGoMemory()
}

// call omits windows, path and digest.
func (c *collective) call() driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.reduceOp, Root: c.root,
		Count: c.count, Send: c.send.Address(), Recv: c.recv.Address(),
		Tag: c.tag, Arrived: c.arrived, Splits: c.splits.WithOffsets(), Factor: c.factor,
	}
	if all := c.buffers(); slices.ContainsFunc(all[:], Memory.isGoMemory) {
		call.Keep = all
	}

	if c.norm != nil {
		call.Norm = c.norm.driverNorm()
	}

	if c.routed != nil {
		call.Route = c.routed.driverRoute()
	}

	return call
}

// prepare registers memory, chooses the path and creates the plan. During a capture on any rank, it
// registers nothing, and all ranks take a path without windows.
func (pl *planner) prepare(ctx context.Context, c *collective, s *Stream) error {
	ctx = orBackground(ctx)
	if err := pl.life.cause(ctx); err != nil {
		return pl.wrapError(c, err)
	}

	for _, m := range c.buffers() {
		if m.pool != nil {
			m.pool.suspicion.addOutsideGroup(&pl.roster)
		}
	}

	registered, err := pl.register(ctx, c, s)
	if err != nil {
		return pl.wrapError(c, err)
	}

	if err := pl.realignPools(ctx, c, registered); err != nil {
		return pl.wrapError(c, err)
	}

	call := c.call()
	c.revision = pl.windows.revision.Load()
	found := pl.setWindows(&call)
	offer, why, err := pl.router.route(c.choice, &call, found.reason)
	if err != nil {
		return pl.wrapError(c, err)
	}

	described := pl.describe(&call, &found, 0)
	callDigest := digestCall(described)
	c.plan, err = offer.Take(call.Path, callDigest)
	if err != nil {
		return fmt.Errorf("%w (%v)", pl.life.awaitFault(err), why)
	}

	c.described = describeSubmitted(&call, described, len(pl.ranks), pl.rank, callDigest)
	if pl.rt.live.countsCalls.Load() {
		pl.timers.add(c, call.Path)
	}

	// If memory is still pending, the next call may register it.
	if registered && c.isCacheable() && !c.hasPending(pl.windows) {
		pl.plans[c.planSlot(c.extra())].Store(c)
	}

	return nil
}

// hasPending must be called after c.revision has been set, because memory that is mapped
// later makes the plan stale.
func (c *collective) hasPending(w *windows) bool {
	if !c.operation.UsesWindows() {
		return false
	}

	buffers := c.windowBuffers()
	send, recv := w.membershipOf(buffers[0].pool), w.membershipOf(buffers[1].pool)
	return send != nil && send.hasPending.Load() || recv != nil && recv.hasPending.Load()
}

// realignPools finds the pools by address, because the caller may have passed only addresses.
func (pl *planner) realignPools(ctx context.Context, c *collective, registered bool) error {
	call := c.call()
	found := pl.setWindows(&call)
	sendBytes, recvBytes := call.Spans(len(pl.ranks), pl.rank)
	for _, m := range [...]struct {
		*windowEntry
		address uintptr
		bytes   int64
	}{{found.send, call.Send, sendBytes}, {found.recv, call.Recv, recvBytes}} {
		if m.windowEntry == nil || !m.pool.realigner.mustRealign(&pl.roster, m.address, m.bytes) {
			continue
		}

		if !registered {
			return fmt.Errorf("a pool must be realigned after a fault, which a capture cannot do: call "+
				"Pool.Register before the capture: %w", ErrCapturing)
		}

		register := m.pool.Register
		if c.hasEntered(m.pool) {
			register = m.pool.registrar.registerInCall
		}

		if err := cmp.Or(register(ctx, pl.group), context.Cause(ctx)); err != nil {
			return err // for the reason given in register
		}
	}

	return nil
}

func (pl *planner) wrapError(c *collective, err error) error {
	return fmt.Errorf("%v on group %s: %w", c.operation, pl.id, err)
}

func (pl *planner) validate(c *collective, call *driver.Call) error {
	if err := call.Validate(len(pl.ranks), pl.rank); err != nil {
		return err
	}

	send, recv := call.Spans(len(pl.ranks), pl.rank)
	err := errors.Join(
		pl.checkMemory("send", c.send, send, c.dataType),
		pl.checkMemory("receive", c.recv, recv, c.dataType))
	if !c.hasOtherBuffers() {
		return err
	}

	others := c.otherBuffers()
	for i, span := range call.OtherSpans() {
		// Validate has checked the alignment.
		err = errors.Join(err, pl.checkMemory(span.Name, others[i], span.Bytes, Uint8))
	}

	return err
}

func (pl *planner) checkMemory(what string, m Memory, bytes int64, t DataType) error {
	if bytes == 0 {
		return nil
	}

	if bytes > m.Bytes() {
		return fmt.Errorf("%s buffer of %d bytes: the call needs %d: %w",
			what, m.Bytes(), bytes, ErrOutOfRange)
	}

	if m.Address() == 0 {
		return invalid("%s buffer has no address", what)
	}

	if m.isGoMemory() && !pl.rt.device.Info().Addressable {
		return fmt.Errorf("%s buffer is a Go slice, which the device cannot reach: copy it to a "+
			"buffer with Stream.Copy: %w", what, ErrUnsupported)
	}

	if m.Address()%uintptr(t.Size()) != 0 {
		return invalid("%s buffer at %#x is not aligned to %v", what, m.Address(), t)
	}

	if m.pool == nil {
		return nil
	}

	if m.pool.rt != pl.rt {
		return fmt.Errorf("%s buffer of another runtime: %w", what, ErrForeign)
	}

	if _, err := m.pool.blockOf(m); err != nil {
		return fmt.Errorf("%s buffer: %w", what, err)
	}

	return nil
}

// register reports whether the pools of the buffers are registered. During this call's or any
// rank's capture, it registers nothing.
func (pl *planner) register(
	ctx context.Context, c *collective, s *Stream,
) (registered bool, err error) {
	if !c.operation.UsesWindows() {
		return true, nil
	}

	if s.inCapture() {
		return false, nil
	}

	for _, m := range c.windowBuffers() {
		if !m.needsRegistration(pl.group) {
			continue
		}

		err := m.pool.registrar.registerInCall(ctx, pl.group)
		if errors.Is(err, ErrCapturing) {
			return false, nil
		}

		// If the context has ended, the caller may have abandoned the buffers.
		if err := cmp.Or(err, context.Cause(ctx)); err != nil {
			return false, err
		}
	}

	return true, nil
}

func (m Memory) needsRegistration(g *Group) bool {
	p := m.pool
	if p == nil {
		return false
	}

	member := g.windows.membershipOf(p)
	if member != nil && !member.hasPending.Load() || !g.calls.canRegister(p) {
		return false
	}

	return p.realigner.mustRealign(&g.roster, m.Address(), m.Bytes()) ||
		p.registrar.hasPendingSegments(member)
}
