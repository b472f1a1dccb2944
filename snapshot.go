package symmem

import (
	"cmp"
	"os"
	"slices"
	"time"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/live"
)

// snapshot returns the current state of the Runtime. For each pool, it contains at most maxEvents
// of the latest events.
func (v *liveView) snapshot(maxEvents int) live.Snapshot {
	rt := v.rt
	s := live.Snapshot{
		Rank: rt.rank, Size: rt.size, Process: os.Getpid(), Opened: v.opened.UTC(), GPU: -1,
		Waits: []live.Wait{}, Groups: []live.Group{}, Pools: []live.Pool{},
	}
	if !v.isReady.Load() {
		return s
	}
	device := rt.Device()
	s.Backend, s.Device, s.GPU, s.Library = device.Backend, device.Name, device.Ordinal, rt.Library()
	s.Check, s.Formula = rt.Check().String(), rt.Formula().String()
	for _, g := range rt.registry.allGroups() {
		group, waits := snapshotGroup(g)
		s.Groups, s.Waits = append(s.Groups, group), append(s.Waits, waits...)
	}
	slices.SortStableFunc(s.Groups, func(a, b live.Group) int { return cmp.Compare(a.ID, b.ID) })
	pools := rt.registry.allPools()
	maxEvents = min(maxEvents, maxSnapshotEvents/max(len(pools), 1))
	for _, p := range pools {
		s.Pools = append(s.Pools, snapshotPool(p, maxEvents))
	}
	return s
}

const (
	maxSnapshotEvents = 1 << 16 // of all pools together
	maxFaultText      = 4096    // in bytes
)

func snapshotGroup(g *Group) (live.Group, []live.Wait) {
	stats := g.Stats()
	s := live.Group{
		ID: g.id, Ranks: g.Ranks(), State: "open", TimeoutSeconds: g.Timeout().Seconds(),
		Machines: stats.Tuning.Machines, Windows: stats.Windows, Registrations: stats.Registrations,
		Agreements: stats.Agreements, Paths: stats.Paths, Calls: g.calls.clocks.read(),
	}
	select {
	case <-g.life.failing:
		s.State = "failing"
	default:
	}
	if err := g.Err(); err != nil {
		text := err.Error()
		s.State, s.Fault = "failed", text[:min(len(text), maxFaultText)]
	}
	inspector, canInspect := g.comm.(driver.Inspector)
	if !canInspect {
		return s, nil
	}
	inspection, now := inspector.Inspect(), time.Now().UTC()
	s.Activity = inspection.Activity
	var waits []live.Wait
	for _, w := range inspection.Waits {
		waits = append(waits, live.Wait{
			Group: g.id, InCall: w.InCall, Since: now.Add(-w.Waited), Seconds: w.Waited.Seconds(),
			Ranks: w.Ranks, Activity: w.Activity,
		})
	}
	return s, waits
}

const (
	// maxLockWait limits how long a snapshot waits for a pool's lock, because a call can hold the
	// lock while it waits for other ranks.
	maxLockWait    = 20 * time.Millisecond
	lockRetryDelay = time.Millisecond
)

// snapshotPool holds the pool's lock for about 10 ns per event.
func snapshotPool(p *Pool, maxEvents int) live.Pool {
	s := live.Pool{ID: p.events.outbox.common.Pool % poolsPerDomain}
	if p.domain != nil {
		s.Domain = p.domain.id
	}
	if maxEvents > 0 {
		s.Recent = make([]live.Placement, 0, maxEvents) // not while the lock is held
	}
	for begin := time.Now(); !p.mu.TryLock(); time.Sleep(lockRetryDelay) {
		if time.Since(begin) > maxLockWait {
			s.Busy = true
			return s
		}
	}
	defer p.mu.Unlock()
	s.PoolStats = live.PoolStats(poolStats(p))
	addEventsAndWindows(&s, p)
	return s
}

// addEventsAndWindows adds the pool's latest events, up to the capacity of s.Recent, and its
// registrations with groups. The caller must hold p.mu.
func addEventsAndWindows(s *live.Pool, p *Pool) {
	if cap(s.Recent) == 0 {
		return
	}
	end := p.ledger.Position()
	s.First = max(p.ledger.Floor(), end-min(end, uint64(cap(s.Recent))))
	for position := s.First; position < end; position++ {
		var e event.Event
		p.ledger.At(position).Load(&e)
		s.Recent = append(s.Recent, live.Placement{
			int64(e.Kind), int64(e.Stream), int64(e.Segment), e.Offset, e.Size, e.Requested,
		})
	}
	for g, m := range p.registrar.memberships {
		for segment := range m.windows {
			s.Registered = append(s.Registered, live.Window{
				Group: g.id, Segment: segment.ordinal, Bytes: segment.bytes,
			})
		}
	}
	slices.SortFunc(s.Registered, func(a, b live.Window) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Segment, b.Segment))
	})
}
