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

// Each rank serves web pages that show snapshots of its Runtime. So that a snapshot does not delay
// the program, it contains only the latest events of each pool, and omits the state of a pool that
// cannot be locked within maxLockWait.

const (
	maxSnapshotEvents = 1 << 16
	maxFaultTextBytes = 4096
)

// snapshot returns the state of the Runtime, with at most maxEvents events of each pool, and at
// most maxSnapshotEvents in total.
func (v *liveView) snapshot(maxEvents int) live.Snapshot {
	rt := v.rt
	const unknownGPU = -1
	snapshot := live.Snapshot{
		Rank: rt.rank, Size: rt.size, GPU: unknownGPU,
		Process: os.Getpid(), Opened: v.openTime.UTC(),
		Waits: []live.Wait{}, Groups: []live.Group{}, Pools: []live.Pool{}, // [] in JSON, not null
	}
	if !v.isReady.Load() {
		return snapshot // Open is still initializing the Runtime
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
	maxPoolEvents := min(maxEvents, maxSnapshotEvents/max(len(pools), 1))
	for _, p := range pools {
		snapshot.Pools = append(snapshot.Pools, snapshotPool(p, maxPoolEvents))
	}

	return snapshot
}

// snapshotGroup returns the state of a group, and this rank's waits for other ranks.
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
	if err := g.Err(); err != nil {
		text := err.Error()
		return "failed", text[:min(len(text), maxFaultTextBytes)]
	}

	select {
	case <-g.life.failing: // the ranks have not agreed on the cause yet
		return "failing", ""
	default:
		return "open", ""
	}
}

// snapshotPool returns the state of a pool. It includes the latest events and the windows unless
// maxEvents is 0. It holds the pool's lock for about 10 ns per event.
func snapshotPool(p *Pool, maxEvents int) live.Pool {
	numberInDomain := p.events.outbox.common.Pool % poolsPerDomain
	snapshot := live.Pool{ID: numberInDomain}
	if p.domain != nil {
		snapshot.Domain = p.domain.id
	}

	hasDetails := maxEvents > 0
	if hasDetails { // the slow allocation precedes the lock
		snapshot.Recent = make([]live.Placement, 0, maxEvents)
	}

	isLocked := lockInTime(p)
	if !isLocked {
		snapshot.Busy = true
		return snapshot
	}

	defer p.mu.Unlock()
	snapshot.PoolStats = live.PoolStats(poolStats(p))
	if hasDetails {
		addEvents(&snapshot, p, maxEvents)
		addWindows(&snapshot, p)
	}

	return snapshot
}

const (
	maxLockWait    = 20 * time.Millisecond // hardly visible on a page
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

// addEvents adds the latest events in the pool's history, the ledger. The caller must hold p.mu.
func addEvents(snapshot *live.Pool, p *Pool, maxEvents int) {
	end := p.ledger.Position()
	maxCount := min(uint64(maxEvents), end)
	oldest := p.ledger.Floor() // the ledger has discarded earlier events
	snapshot.First = max(oldest, end-maxCount)
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
