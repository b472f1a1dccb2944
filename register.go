package symmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// membership is a group's use of a pool: the group registers the pool's segments (parts of its
// memory that were mapped at once). Each registration creates a window.
type membership struct {
	pool    *Pool
	group   *Group
	windows map[*segment]driver.Window // guarded by Pool.mu
	// nextOrdinal is the number after that of the last registered segment. Segments are registered
	// in the order of their numbers. Guarded by Pool.mu.
	nextOrdinal int32
	hasPending  atomic.Bool // segments may have been mapped since the last registration
}

// setPending records that there may be segments to register. It also makes the group's plans
// (prepared calls) stale, because they would not register the memory.
func (m *membership) setPending() {
	m.hasPending.Store(true)
	m.group.windows.revision.Add(1)
}

// registrar registers a pool's segments with groups. Each registration creates a window.
type registrar struct {
	mu          *ranked.Spin[poolMu]
	pool        *Pool
	rt          *Runtime
	domain      *Group
	memberships map[*Group]*membership // guarded by mu
	segments    *segmentTable
	suspicion   *suspicion
	history     *history
	events      *poolEvents
}

// ensureMembershipLocked returns the group's membership, and creates it in the first call. It
// returns an ErrInvalid if the group cannot use the pool. The caller must hold mu.
func (r *registrar) ensureMembershipLocked(g *Group) (*membership, error) {
	if m := r.memberships[g]; m != nil {
		return m, nil
	}

	if r.domain == nil {
		return nil, invalid("group %s: the pool has no domain, so its memory is never registered",
			g.id)
	}

	if !r.domain.contains(&g.roster) {
		return nil, invalid("group %s has ranks outside the pool's domain %s", g.id, r.domain.id)
	}

	m := &membership{pool: r.pool, group: g, windows: map[*segment]driver.Window{}}
	hasSegments := slices.ContainsFunc(r.segments.list, (*segment).canRegister)
	mustRealign := r.suspicion.isSuspectForLocked(&g.roster) // a registration realigns the pool
	m.hasPending.Store(hasSegments || mustRealign)
	r.memberships[g] = m
	return m, nil
}

// ensureMembership is ensureMembershipLocked for callers that do not hold mu. It also adds the
// membership to the group. It returns an error if the group is nil or belongs to another runtime,
// or if the pool is closed.
func (r *registrar) ensureMembership(g *Group) (*membership, error) {
	if g == nil || g.rt != r.rt {
		return nil, invalid("the group is nil or belongs to another runtime than the pool")
	}

	if m := g.windows.membershipOf(r.pool); m != nil {
		return m, nil
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.segments.closed {
		return nil, errPoolClosed
	}

	m, err := r.ensureMembershipLocked(g)
	if err == nil {
		g.windows.addMembership(m)
	}

	return m, err
}

// hasPendingSegments reports whether there are segments to register. m is nil if the group has no
// membership yet.
func (r *registrar) hasPendingSegments(m *membership) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	firstOrdinal := int32(0)
	if m != nil {
		firstOrdinal = m.nextOrdinal
	}

	return slices.ContainsFunc(r.segments.list[firstOrdinal:], (*segment).canRegister)
}

// setPending calls setPending for all memberships. The caller must hold mu.
func (r *registrar) setPending() {
	for _, m := range r.memberships {
		m.setPending()
	}
}

// registerInCall registers the pool's pending segments with a group, if there are any. The caller
// must have called enterPools, so that Close waits.
func (r *registrar) registerInCall(ctx context.Context, g *Group) error {
	m, err := r.ensureMembership(g)
	if err != nil {
		return fmt.Errorf("registering: %w", err)
	}

	if !m.hasPending.Load() {
		return nil
	}

	return r.register(ctx, m)
}

// register registers the group's pending segments. The caller must have called enterPools.
func (r *registrar) register(ctx context.Context, m *membership) error {
	g := m.group
	defer deliverAll(r.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.life.cause(ctx); err != nil {
		return err
	}

	if err := g.refusal(); err != nil {
		return err
	}

	segments := r.holdPendingSegments(m)
	defer func() { r.segments.releaseAll(segments) }() // the latest value of segments
	if len(segments) == 0 && !r.suspicion.isSuspectFor(&g.roster) {
		return nil
	}

	err := g.aligner.realignAndCompare(ctx, &sharedCall{
		tag: "registration", pools: []*Pool{r.pool},
		histories: func() []agreement.Ledger {
			// After a realignment, other segments can be pending.
			r.segments.releaseAll(segments)
			segments = r.holdPendingSegments(m)
			if g.rt.Check() == CheckOff {
				return nil
			}

			return []agreement.Ledger{r.history.with(segments)}
		},
	})
	if err == nil && len(segments) > 0 {
		err = r.registerSegments(ctx, m, segments)
	}

	if err != nil {
		m.setPending() // so that the next call tries again
	}

	return err
}

// registerSegments registers segments, which must be the same on all ranks. During a capture on
// some rank, all ranks return ErrCapturing instead. The caller must hold Group.mu.
func (r *registrar) registerSegments(
	ctx context.Context, m *membership, segments []*segment,
) error {
	g := m.group
	exchange := g.comparison.exchangeOn(driver.LaneControl)
	err := r.rt.captures.runWithoutCapture(ctx, exchange, func() error {
		for _, s := range segments {
			if err := r.registerSegment(ctx, m, s); err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("registering with group %s: %w", g.id, g.life.awaitFault(err))
	}

	g.registrations.Add(1)
	return nil
}

// holdPendingSegments returns the segments to register. They stay mapped until releaseAll. It also
// resets m.hasPending.
func (r *registrar) holdPendingSegments(m *membership) []*segment {
	isAny := func(*segment) bool { return true }
	r.mu.Lock()
	defer r.mu.Unlock()
	m.hasPending.Store(false)
	return r.segments.holdSegments(m.nextOrdinal, isAny)
}

// registerSegment registers a segment and adds the window. If the window cannot be added, it
// deregisters the segment.
func (r *registrar) registerSegment(ctx context.Context, m *membership, s *segment) error {
	g := m.group
	key := driver.SegmentKey{Pool: r.history.id, Ordinal: uint32(s.ordinal)}
	window, err := g.comm.Register(ctx, key, s.memory)
	if err != nil {
		return err
	}

	isAdded, err := r.addWindow(m, s, window)
	if isAdded {
		return nil
	}

	deregisterErr := window.Deregister()
	if err != nil {
		return errors.Join(err, deregisterErr)
	}

	r.segments.reportLater(deregisterErr) // a concurrent Trim unmaps the segment: no error
	return nil
}

// addWindow adds a window to the membership and the group. If the group has been closed, it returns
// ErrClosed. If a concurrent Trim unmaps the segment, it returns false and no error: another rank
// may have added its window before its Trim.
func (r *registrar) addWindow(
	m *membership, s *segment, window driver.Window,
) (isAdded bool, err error) {
	g := m.group
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memberships[g] != m {
		return false, fmt.Errorf("registering segment %d with group %s: the group was closed: %w",
			s.ordinal, g.id, ErrClosed)
	}

	if s.withdrawn {
		return false, nil
	}

	m.windows[s] = window
	m.nextOrdinal = s.ordinal + 1
	g.windows.add(r.pool, s, window)
	notify(r.rt, func(o *Observer) func(WindowEvent) { return o.Register },
		WindowEvent{r.segments.newSegmentEvent(s), g})
	r.events.recordWindow(event.KindRegister, s, g)
	return true, nil
}

// deregister removes the segment's windows from all memberships and groups. The caller must hold
// mu. It must make the returned calls, which deregister the windows, after it has unlocked mu.
func (r *registrar) deregister(s *segment) unlockedCalls {
	calls := unlockedCalls{func() error { return deregisterAdopted(r.rt, s) }}
	compareKeys := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	inSameOrderOnAllRanks := slices.SortedFunc(maps.Values(r.memberships), compareKeys)
	for _, m := range inSameOrderOnAllRanks {
		calls = append(calls, r.deregisterWindow(m, s)...)
	}

	return calls
}

// deregisterWindow is deregister for one membership. If the segment has no window, it does nothing.
func (r *registrar) deregisterWindow(m *membership, s *segment) unlockedCalls {
	window := m.windows[s]
	if window == nil {
		return nil
	}

	delete(m.windows, s)
	notify(r.rt, func(o *Observer) func(WindowEvent) { return o.Deregister },
		WindowEvent{r.segments.newSegmentEvent(s), m.group})
	r.events.recordWindow(event.KindDeregister, s, m.group)
	m.group.windows.remove(r.pool, s)
	deregister := func() error {
		err := window.Deregister()
		return panicIfClosedTwice(err)
	}
	return unlockedCalls{deregister}
}

// dropGroup deregisters the windows of a group that is being closed, and removes its membership.
func (r *registrar) dropGroup(g *Group) error {
	// The function runs with mu held, and the calls that it returns without mu.
	return r.segments.end(func() (calls unlockedCalls) {
		delete(r.suspicion.outsideGroups, g.fullID)
		m := r.memberships[g]
		if m == nil || r.segments.closed {
			return nil
		}

		for _, s := range r.segments.list {
			calls = append(calls, r.deregisterWindow(m, s)...)
		}

		delete(r.memberships, g)
		m.setPending() // so that later registrations return ErrClosed
		return calls
	})
}
