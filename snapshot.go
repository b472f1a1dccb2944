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

// snapshot returns the state of the Runtime for the live view (web pages), with at most maxEvents
// events of each pool.
func (v *liveView) snapshot(maxEvents int) live.Snapshot {
	rt := v.rt
	const unknownGPU = -1
	snapshot := live.Snapshot{
		Rank: rt.rank, Size: rt.size, GPU: unknownGPU,
		Process: os.Getpid(), Opened: v.openTime.UTC(),
		Waits: []live.Wait{}, Groups: []live.Group{}, Pools: []live.Pool{}, // not nil, for JSON
	}
	if !v.isReady.Load() {
		return snapshot
	}

	device := rt.Device()
	snapshot.Backend, snapshot.Device, snapshot.GPU = device.Backend, device.Name, device.Ordinal
	snapshot.Library = rt.Library()
	snapshot.Check, snapshot.Formula = rt.Check().String(), rt.Formula().String()
	for _, g := range rt.registry.allGroups() {
		group, waits := snapshotGroup(g)
		snapshot.Groups = append(snapshot.Groups, group)
		snapshot.Waits = append(snapshot.Waits, waits...)
	}

	slices.SortStableFunc(snapshot.Groups, func(a, b live.Group) int {
		return cmp.Compare(a.ID, b.ID)
	})
	pools := rt.registry.allPools()
	maxEvents = min(maxEvents, maxSnapshotEvents/max(len(pools), 1))
	for _, p := range pools {
		snapshot.Pools = append(snapshot.Pools, snapshotPool(p, maxEvents))
	}

	return snapshot
}

const (
	maxSnapshotEvents = 1 << 16 // of all pools together
	maxFaultText      = 4096    // in bytes
)

// snapshotGroup returns the state of a group, and this rank's waits for other ranks of the group.
func snapshotGroup(g *Group) (live.Group, []live.Wait) {
	stats := g.Stats()
	snapshot := live.Group{
		ID: g.id, Ranks: g.Ranks(), State: "open", TimeoutSeconds: g.Timeout().Seconds(),
		Machines: stats.Tuning.Machines, Windows: stats.Windows, Registrations: stats.Registrations,
		Agreements: stats.Agreements, Paths: stats.Paths, Calls: g.calls.clocks.summarize(),
	}
	select {
	case <-g.life.failing: // closed: this rank has detected a fault
		snapshot.State = "failing"
	default:
	}

	if err := g.Err(); err != nil { // the ranks have agreed on the cause
		text := err.Error()
		snapshot.State = "failed"
		snapshot.Fault = text[:min(len(text), maxFaultText)]
	}

	inspector, canInspect := g.comm.(driver.Inspector)
	if !canInspect {
		return snapshot, nil
	}

	inspection := inspector.Inspect()
	now := time.Now().UTC()
	snapshot.Activity = inspection.Activity
	var waits []live.Wait
	for _, wait := range inspection.Waits {
		waits = append(waits, live.Wait{
			Group: g.id, InCall: wait.InCall, Since: now.Add(-wait.Waited),
			Seconds: wait.Waited.Seconds(),
			Ranks:   wait.Ranks, Activity: wait.Activity,
		})
	}

	return snapshot, waits
}

const (
	// maxLockWait limits the wait for a pool's lock, because a call can hold the lock while it
	// waits for other ranks. A page that is 20 ms late still looks live.
	maxLockWait    = 20 * time.Millisecond
	lockRetryDelay = time.Millisecond
)

// snapshotPool returns the state of a pool and its latest events. It holds the pool's lock for
// about 10 ns per event. If it cannot lock the pool in time, it returns a snapshot without the
// state, in which Busy is set.
func snapshotPool(p *Pool, maxEvents int) live.Pool {
	number := p.events.outbox.common.Pool % poolsPerDomain // the number in the domain
	snapshot := live.Pool{ID: number}
	if p.domain != nil {
		snapshot.Domain = p.domain.id
	}

	if maxEvents > 0 {
		snapshot.Recent = make([]live.Placement, 0, maxEvents) // allocated before the lock is held
	}

	start := time.Now()
	for !p.mu.TryLock() {
		if time.Since(start) > maxLockWait {
			snapshot.Busy = true
			return snapshot
		}

		time.Sleep(lockRetryDelay)
	}

	defer p.mu.Unlock()
	snapshot.PoolStats = live.PoolStats(poolStats(p))
	addEventsAndWindows(&snapshot, p)
	return snapshot
}

// addEventsAndWindows adds the latest events, up to the capacity of snapshot.Recent, and the
// registrations. If the capacity is 0, it adds nothing. The caller must hold p.mu.
func addEventsAndWindows(snapshot *live.Pool, p *Pool) {
	if cap(snapshot.Recent) == 0 {
		return
	}

	// The ledger (the pool's history) keeps the events at the positions from Floor to end-1.
	end := p.ledger.Position()
	count := min(end, uint64(cap(snapshot.Recent)))
	snapshot.First = max(p.ledger.Floor(), end-count)
	for position := snapshot.First; position < end; position++ {
		var e event.Event
		p.ledger.At(position).Load(&e)
		snapshot.Recent = append(snapshot.Recent, live.Placement{
			int64(e.Kind), int64(e.Stream), int64(e.Segment), e.Offset, e.Size, e.Requested,
		})
	}

	for g, m := range p.registrar.memberships {
		for segment := range m.windows {
			snapshot.Registered = append(snapshot.Registered, live.Window{
				Group: g.id, Segment: segment.ordinal, Bytes: segment.bytes,
			})
		}
	}

	slices.SortFunc(snapshot.Registered, func(a, b live.Window) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Segment, b.Segment))
	})
}
