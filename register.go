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
	"symmem/internal/invariants"
)

// membership represents a group's use of a pool and holds the group's windows in the pool.
type membership struct {
	pool    *Pool
	group   *Group
	windows map[*segment]driver.Window // guarded by Pool.mu
	// next is the ordinal of the first segment that may be pending. Earlier segments have been
	// registered or trimmed; guarded by Pool.mu.
	next int32
	// pending reports whether segments have been mapped since the group last registered. The end of a
	// scope loads only this word, whatever the number of segments and groups.
	pending atomic.Bool
}

// setPending marks the membership as having memory to register. Existing plans become stale,
// because they would not register it.
func (m *membership) setPending() {
	m.pending.Store(true)
	m.group.windows.revision.Add(1)
}

// membershipOf returns the group's membership, and creates it when the group first uses the pool.
// All live segments are pending for a new member. p.mu is held.
func (p *Pool) membershipOf(g *Group) (*membership, error) {
	if m := p.members[g]; m != nil {
		return m, nil
	}
	if p.domain == nil {
		return nil, invalid("group %s: the pool has no domain, so its memory is never registered",
			g.id)
	}
	if !p.domain.contains(&g.roster) {
		return nil, invalid("group %s has ranks outside the pool's domain %s", g.id, p.domain.id)
	}
	m := &membership{pool: p, group: g, windows: map[*segment]driver.Window{}}
	m.pending.Store(p.suspicion.concerns(&g.roster) ||
		slices.ContainsFunc(p.segments, (*segment).registrable))
	p.members[g] = m
	return m, nil
}

// Register registers with the group all segments that it has not registered yet, as the end of a
// scope does. It is collective over the group. Without new segments it returns at once and does not
// communicate.
//
// A DivergenceError, TimeoutError or RankLostError is returned on every rank of the group. Further
// calls return the same error, and existing windows are closed with the group. If any rank captures
// a stream, every rank returns ErrCapturing; then nothing has been registered and the group remains
// usable.
func (p *Pool) Register(ctx context.Context, g *Group) error {
	ctx = orBackground(ctx)
	m, err := p.member(g)
	if err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	if !m.pending.Load() {
		return nil
	}
	return p.registerPending(ctx, g, m)
}

// registerPending enters the pool and registers the segments that are pending for a group.
func (p *Pool) registerPending(ctx context.Context, g *Group, m *membership) error {
	in, err := enter(p, nil)
	if err != nil {
		return fmt.Errorf("registering with group %s: %w", g.id, err)
	}
	defer in.leave(p, nil)
	return p.registerEntered(ctx, g, m)
}

// registerInCall is Register for a call that has already entered the pool. Close waits for such a
// call.
func (p *Pool) registerInCall(ctx context.Context, g *Group) error {
	m, err := p.member(g)
	if err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	if !m.pending.Load() {
		return nil
	}
	return p.registerEntered(ctx, g, m)
}

func (p *Pool) member(g *Group) (*membership, error) {
	if g == nil || g.rt != p.rt {
		return nil, invalid("the group is nil or belongs to another runtime than the pool")
	}
	if m := g.windows.memberOf(p); m != nil {
		return m, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errPoolClosed
	}
	m, err := p.membershipOf(g)
	if err == nil {
		g.windows.remember(m)
	}
	return m, err
}

// registerEntered implements registerPending for a call that has already entered the pool.
func (p *Pool) registerEntered(ctx context.Context, g *Group, m *membership) error {
	defer deliverAll(p.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.life.cause(ctx); err != nil {
		return err
	}
	pending := p.pendingOf(m)
	defer func() { p.releaseHolds(pending) }()
	if len(pending) == 0 && !(suspectPool{p}).suspect(&g.roster) {
		return nil
	}
	err := g.aligner.meet(ctx, &meeting{
		tag: "registration", pools: []*Pool{p},
		ledgers: func() []agreement.Ledger {
			p.releaseHolds(pending) // the list may have changed
			if pending = p.pendingOf(m); g.rt.Check() == CheckOff {
				return nil
			}
			return []agreement.Ledger{p.history(pending)}
		},
	})
	if err == nil && len(pending) > 0 {
		err = p.registerAll(ctx, g, m, pending)
	}
	if err != nil {
		// Unregistered segments stay pending. The next call then returns the fault, too.
		m.setPending()
		return err
	}
	return nil
}

// registerAll registers the segments that the ranks agreed on. g.mu is held.
func (p *Pool) registerAll(
	ctx context.Context, g *Group, m *membership, pending []*segment,
) error {
	err := p.rt.captures.exclude(ctx, g.comparison.lane(driver.LaneControl), func() error {
		for _, s := range pending {
			if err := p.registerOne(ctx, g, m, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("registering with group %s: %w", g.id, g.life.awaitCause(err))
	}
	g.registered.Add(1)
	return nil
}

// pendingOf returns a copy of the pending segments. No lock is then held while ranks wait for each
// other. Segments that are mapped meanwhile remain pending.
func (p *Pool) pendingOf(m *membership) []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.pending.Store(false)
	var pending []*segment
	for _, s := range p.segments[m.next:] {
		if s.registrable() {
			s.holds++
			pending = append(pending, s)
		}
	}
	return pending
}

// releaseHolds releases a list of segments from pendingOf. Trim may have retired some of them
// meanwhile.
func (p *Pool) releaseHolds(pending []*segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range pending {
		_ = p.release(s) // an error could only concern a Trim that has returned
	}
}

// release removes a hold on a segment and unmaps the segment if it was the last one. p.mu is held.
func (p *Pool) release(s *segment) error {
	if s.holds--; s.holds > 0 {
		return nil
	}
	return p.unmap(s)
}

func (p *Pool) registerOne(ctx context.Context, g *Group, m *membership, s *segment) error {
	key := driver.SegmentKey{Pool: p.id, Ordinal: uint32(s.ordinal)}
	w, err := g.comm.Register(ctx, key, s.memory)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.releasing || p.members[g] != m {
		closedErr := fmt.Errorf("registering segment %d with group %s: the segment or group was "+
			"closed: %w", s.ordinal, g.id, ErrClosed)
		return errors.Join(closedErr, w.Deregister())
	}
	m.windows[s], m.next = w, s.ordinal+1
	g.windows.add(p, s, w)
	notify(p.rt, func(o *Observer) func(WindowEvent) { return o.Register },
		WindowEvent{p.segmentEvent(s), g})
	poolEvents{p}.window(event.KindRegister, s, g)
	return nil
}

// deregister removes all windows of a segment. p.mu is held.
func (p *Pool) deregister(s *segment) error {
	errs := []error{deregisterAdopted(p.rt, s)}
	byKey := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	for _, m := range slices.SortedFunc(maps.Values(p.members), byKey) {
		errs = append(errs, m.dropWindow(s))
	}
	return errors.Join(errs...)
}

// dropWindow deregisters the group's window of a segment, if it has one. Pool.mu is held.
func (m *membership) dropWindow(s *segment) error {
	w := m.windows[s]
	if w == nil {
		return nil
	}
	delete(m.windows, s)
	notify(m.pool.rt, func(o *Observer) func(WindowEvent) { return o.Deregister },
		WindowEvent{m.pool.segmentEvent(s), m.group})
	poolEvents{m.pool}.window(event.KindDeregister, s, m.group)
	m.group.windows.remove(m.pool, s)
	return closedOnce(w.Deregister())
}

// unmap unmaps a segment. p.mu is held.
func (p *Pool) unmap(s *segment) error {
	notify(p.rt, func(o *Observer) func(SegmentEvent) { return o.SegmentFree }, p.segmentEvent(s))
	p.segments[s.ordinal] = nil
	poolEvents{p}.record(event.Event{
		Kind: event.KindRelease, Segment: s.ordinal, Size: s.bytes, Stream: s.stream,
	})
	return closedOnce(s.memory.Unmap())
}

// closedOnce returns the error of closing a window or a segment. In builds with the tag invariants
// it panics if the window or segment was already closed, which is a bug in this package.
func closedOnce(err error) error {
	if invariants.Enabled && errors.Is(err, ErrClosed) {
		panic("symmem: ended twice: " + err.Error())
	}
	return err
}

// leave removes a group from the pool and deregisters its windows there.
func (p *Pool) leave(g *Group) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.suspicion.guests, g.full)
	m := p.members[g]
	if m == nil || p.closed {
		return nil
	}
	var errs []error
	for _, s := range p.segments {
		errs = append(errs, m.dropWindow(s))
	}
	delete(p.members, g)
	// A later registration then finds memory pending and detects that the group is closed.
	m.setPending()
	return errors.Join(errs...)
}

// Trim returns segments without live buffers to the device, newest first, as long as at least keep
// bytes stay mapped. It is collective over the domain. Each rank first waits for its queued work.
// If the work does not end in time, the segments stay mapped until Close. The ranks then agree on
// the segments and deregister them. A rank unmaps a segment only after all ranks have deregistered
// it.
//
// A segment with a buffer that a Graph or a graph of another library uses is kept until that graph
// is closed, even if the buffer has been freed. If another library is capturing an adopted stream
// of some rank, Trim returns ErrCapturing on all ranks and changes nothing.
func (p *Pool) Trim(ctx context.Context, keep int64) error {
	ctx = orBackground(ctx)
	defer deliverAll(p.rt)
	drained := p.rt.streams.drain(ctx)
	if drained != nil && (p.domain == nil || !errors.Is(drained, ErrCapturing)) {
		return fmt.Errorf("trimming a pool: %w", drained)
	}
	if p.domain == nil {
		return p.trimAlone(ctx, keep)
	}
	g := p.domain
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.aligner.meet(ctx, &meeting{
		tag: "trim", pools: []*Pool{p}, reason: keepsMemory,
		ledgers: func() []agreement.Ledger { return []agreement.Ledger{p.history(nil)} },
	})
	if err != nil {
		return err
	}
	if err := agreeOnCaptures(ctx, g, drained); err != nil {
		return fmt.Errorf("trimming a pool: %w", err)
	}
	idle, err := p.takeIdle(ctx, keep)
	err = errors.Join(err, p.retire(idle, (*Pool).deregister))
	// Peers may read a segment through their windows until they have deregistered it.
	if _, waitErr := g.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		return errors.Join(err, g.life.awaitCause(waitErr))
	}
	return errors.Join(err, p.retire(idle, (*Pool).release))
}

func (p *Pool) trimAlone(ctx context.Context, keep int64) error {
	idle, err := p.takeIdle(ctx, keep)
	return errors.Join(err, p.retire(idle, (*Pool).deregister), p.retire(idle, (*Pool).release))
}

// takeIdle removes the idle segments from the core and waits for the work on them. Other goroutines
// may have queued such work, and freed its buffers, since Trim waited.
func (p *Pool) takeIdle(ctx context.Context, keep int64) ([]*segment, error) {
	idle := p.removeIdle(keep)
	if len(idle) == 0 {
		return nil, nil
	}
	if err := p.rt.streams.drain(ctx); err != nil {
		return nil, fmt.Errorf("trimming a pool: %w", err)
	}
	return idle, nil
}

// removeIdle removes the idle segments from the core and excludes them from registration.
func (p *Pool) removeIdle(keep int64) []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	var idle []*segment
	for _, s := range p.core.Trim(keep) {
		p.segments[s.Ordinal].releasing = true
		idle = append(idle, p.segments[s.Ordinal])
		p.ledger.Absorb(&event.Event{
			Kind: event.KindTrim, Stream: p.segments[s.Ordinal].stream, Segment: s.Ordinal, Size: s.Bytes,
		}, 0)
	}
	slices.SortFunc(idle, byOrdinal)
	return idle
}

func byOrdinal(a, b *segment) int { return cmp.Compare(a.ordinal, b.ordinal) }

// retire applies a step to each segment, except those that Close has unmapped meanwhile.
func (p *Pool) retire(idle []*segment, step func(*Pool, *segment) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range idle {
		if p.segments[s.ordinal] != nil {
			errs = append(errs, step(p, s))
		}
	}
	return errors.Join(errs...)
}

// history returns the pool's history for an agreement, with the segments that are about to be
// registered.
func (p *Pool) history(pending []*segment) agreement.Ledger {
	var list agreement.Pending
	for _, s := range pending {
		list = list.Add(s.ordinal, s.bytes)
	}
	return agreement.Ledger{ID: p.id, Source: history{p}, Pending: list}
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// noteAgreed records the position up to which the histories agree. This part is not compared again.
// Only an agreement of the whole domain counts, because a smaller group does not include all its
// ranks.
func (p *Pool) noteAgreed(agreed []agreement.AgreedPrefix, g *roster) {
	if p.domain == nil || !g.contains(&p.domain.roster) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range agreed {
		if a.Ledger == p.id {
			p.ledger.Agree(a.Position, a.Digest)
		}
	}
}
