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

// membership is a group's use of a pool.
type membership struct {
	pool    *Pool
	group   *Group
	windows map[*segment]driver.Window // guarded by Pool.mu
	// nextOrdinal is the ordinal after the last registered segment; guarded by Pool.mu.
	nextOrdinal int32
	hasPending  atomic.Bool // segments may have been mapped since the last registration
}

// setPending makes the group's plans (prepared calls) stale, because they would not register the
// memory.
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

// ensureMembership requires that the caller holds mu.
func (r *registrar) ensureMembership(g *Group) (*membership, error) {
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
	m.hasPending.Store(r.suspicion.isRaisedFor(&g.roster) ||
		slices.ContainsFunc(r.segments.list, (*segment).canRegister))
	r.memberships[g] = m
	return m, nil
}

// findMembership requires that the caller does not hold mu.
func (r *registrar) findMembership(g *Group) (*membership, error) {
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
	m, err := r.ensureMembership(g)
	if err == nil {
		g.windows.addMembership(m)
	}
	return m, err
}

// hasPendingSegments reports whether some segments can be registered. m can be nil.
func (r *registrar) hasPendingSegments(m *membership) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := int32(0)
	if m != nil {
		first = m.nextOrdinal
	}
	return slices.ContainsFunc(r.segments.list[first:], (*segment).canRegister)
}

func (r *registrar) setPending() {
	for _, m := range r.memberships {
		m.setPending()
	}
}

// registerInCall requires that the caller has called enterPools, so that Close waits.
func (r *registrar) registerInCall(ctx context.Context, g *Group) error {
	m, err := r.findMembership(g)
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
	defer func() { r.segments.releaseAll(segments) }()
	if len(segments) == 0 && !r.suspicion.isSuspectFor(&g.roster) {
		return nil
	}
	err := g.aligner.alignAndCompare(ctx, &alignedCall{
		tag: "registration", pools: []*Pool{r.pool},
		ledgers: func() []agreement.Ledger {
			r.segments.releaseAll(segments) // after a realignment, the list can be different
			if segments = r.holdPendingSegments(m); g.rt.Check() == CheckOff {
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

// registerSegments requires the same segments on all ranks, and that the caller holds Group.mu.
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

// holdPendingSegments returns the segments to register. They stay mapped until releaseAll.
func (r *registrar) holdPendingSegments(m *membership) []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.hasPending.Store(false)
	return r.segments.holdSegments(m.nextOrdinal, func(*segment) bool { return true })
}

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
	r.segments.reportLater(deregisterErr)
	return nil
}

// addWindow returns ErrClosed if the group has been closed. It also adds no window to a segment
// that a concurrent Trim unmaps. This is no error, because another rank may have added its window
// before its Trim.
func (r *registrar) addWindow(m *membership, s *segment, window driver.Window) (bool, error) {
	g := m.group
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memberships[g] != m {
		return false, fmt.Errorf("registering segment %d with group %s: the group was closed: %w",
			s.ordinal, g.id, ErrClosed)
	}
	if s.releasing {
		return false, nil
	}
	m.windows[s], m.nextOrdinal = window, s.ordinal+1
	g.windows.add(r.pool, s, window)
	notify(r.rt, func(o *Observer) func(WindowEvent) { return o.Register },
		WindowEvent{r.segments.newSegmentEvent(s), g})
	r.events.recordWindow(event.KindRegister, s, g)
	return true, nil
}

// deregister returns calls that deregister the segment's windows. The caller must hold mu.
func (r *registrar) deregister(s *segment) endCalls {
	calls := endCalls{func() error { return deregisterAdopted(r.rt, s) }}
	compareKeys := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	for _, m := range slices.SortedFunc(maps.Values(r.memberships), compareKeys) {
		calls = append(calls, r.deregisterWindow(m, s)...)
	}
	return calls
}

// deregisterWindow returns the call that deregisters a window, if there is one. The caller must
// hold mu.
func (r *registrar) deregisterWindow(m *membership, s *segment) endCalls {
	window := m.windows[s]
	if window == nil {
		return nil
	}
	delete(m.windows, s)
	notify(r.rt, func(o *Observer) func(WindowEvent) { return o.Deregister },
		WindowEvent{r.segments.newSegmentEvent(s), m.group})
	r.events.recordWindow(event.KindDeregister, s, m.group)
	m.group.windows.remove(r.pool, s)
	return endCalls{func() error { return panicIfClosedTwice(window.Deregister()) }}
}

func (r *registrar) dropGroup(g *Group) error {
	return r.segments.end(func() (calls endCalls) {
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
