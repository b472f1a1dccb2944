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

// The live view, a web server in each rank, shows snapshots of the Runtime. To delay the program as
// little as possible, a snapshot contains only the latest events of each pool, and omits the state
// of a pool that stays locked.

const (
	maxSnapshotEvents = 1 << 16 // of all pools together
	maxFaultTextBytes = 4096
)

// snapshot returns the state of the Runtime, with at most maxEvents events of each pool.
func (v *liveView) snapshot(maxEvents int) live.Snapshot {
	rt := v.rt
	const unknownGPU = -1
	snapshot := live.Snapshot{
		Rank: rt.rank, Size: rt.size, GPU: unknownGPU,
		Process: os.Getpid(), Opened: v.openTime.UTC(),
		Waits: []live.Wait{}, Groups: []live.Group{}, Pools: []live.Pool{}, // [] in JSON, not null
	}
	if !v.isReady.Load() { // Open is still initializing the Runtime
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
	maxEventsPerPool := min(maxEvents, maxSnapshotEvents/max(len(pools), 1))
	for _, p := range pools {
		snapshot.Pools = append(snapshot.Pools, snapshotPool(p, maxEventsPerPool))
	}

	return snapshot
}

// snapshotGroup returns the state of a group and the waits of this rank for other ranks.
func snapshotGroup(g *Group) (live.Group, []live.Wait) {
	stats := g.Stats()
	snapshot := live.Group{
		ID: g.id, Ranks: g.Ranks(), TimeoutSeconds: g.Timeout().Seconds(),
		Machines: stats.Tuning.Machines, Windows: stats.Windows, Registrations: stats.Registrations,
		Agreements: stats.Agreements, Paths: stats.Paths, Calls: g.calls.timers.summarize(),
	}
	snapshot.State, snapshot.Fault = describeState(g)
	inspector, canInspect := g.comm.(driver.Inspector)
	if !canInspect {
		return snapshot, nil
	}

	inspection := inspector.Inspect()
	snapshot.Activity = inspection.Activity
	now := time.Now().UTC()
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

func describeState(g *Group) (state, fault string) {
	if err := g.Err(); err != nil { // the ranks have agreed on the cause
		text := err.Error()
		return "failed", text[:min(len(text), maxFaultTextBytes)]
	}

	select {
	case <-g.life.failing: // closed when this rank detects a fault
		return "failing", ""
	default:
		return "open", ""
	}
}

// snapshotPool returns the state of a pool and its latest events. If it cannot lock the pool in
// time, it sets Busy instead. It holds the lock for about 10 ns per event.
func snapshotPool(p *Pool, maxEvents int) live.Pool {
	numberInDomain := p.events.outbox.common.Pool % poolsPerDomain
	snapshot := live.Pool{ID: numberInDomain}
	if p.domain != nil {
		snapshot.Domain = p.domain.id
	}

	if maxEvents > 0 {
		snapshot.Recent = make([]live.Placement, 0, maxEvents) // before locking, because it is slow
	}

	isLocked := lockInTime(p)
	if !isLocked {
		snapshot.Busy = true
		return snapshot
	}

	defer p.mu.Unlock()
	snapshot.PoolStats = live.PoolStats(poolStats(p))
	if maxEvents > 0 {
		addEvents(&snapshot, p)
		addWindows(&snapshot, p)
	}

	return snapshot
}

const (
	// A call can hold a pool's lock while it waits for other ranks. A delay of 20 ms is hardly visible
	// on a page.
	maxLockWait    = 20 * time.Millisecond
	lockRetryDelay = time.Millisecond
)

// lockInTime reports whether it could lock p.mu within maxLockWait.
func lockInTime(p *Pool) bool {
	start := time.Now()
	for !p.mu.TryLock() {
		if time.Since(start) > maxLockWait {
			return false
		}

		time.Sleep(lockRetryDelay)
	}

	return true
}

// addEvents fills snapshot.Recent with the latest events of the ledger, the pool's event history.
// The caller must hold p.mu.
func addEvents(snapshot *live.Pool, p *Pool) {
	end := p.ledger.Position()
	maxCount := min(end, uint64(cap(snapshot.Recent)))
	oldestPosition := p.ledger.Floor() // the ledger discards old events
	snapshot.First = max(oldestPosition, end-maxCount)
	for position := snapshot.First; position < end; position++ {
		var e event.Event
		p.ledger.At(position).Load(&e)
		snapshot.Recent = append(snapshot.Recent, live.Placement{
			int64(e.Kind), int64(e.Stream), int64(e.Segment), e.Offset, e.Size, e.Requested,
		})
	}
}

// addWindows adds the segments that are registered with groups. The caller must hold p.mu.
func addWindows(snapshot *live.Pool, p *Pool) {
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
