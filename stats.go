package symmem

import (
	"iter"
	"slices"
)

// PoolStats describes a pool at a point in time. Sizes are in bytes.
type PoolStats struct {
	// Used is the size of all allocated blocks, Requested the part of it that callers requested, and
	// HighWater the maximum of Used so far.
	Used      int64 `json:"used"`
	Requested int64 `json:"requested"`
	HighWater int64 `json:"high_water"`
	// Cached is the free memory of the pool, and LargestFree the size of its largest free block.
	Cached      int64 `json:"cached"`
	LargestFree int64 `json:"largest_free"`
	// Deferred is the size of freed blocks that other streams may still use, and Pinned that of
	// blocks that graphs use. Both are part of Used.
	Deferred int64 `json:"deferred"`
	Pinned   int64 `json:"pinned"`
	// Segments and Windows are the numbers of segments and windows. A segment has a window for each
	// group that has registered it.
	Segments int `json:"segments"`
	Windows  int `json:"windows"`
	// Events is the number of events in the ledger.
	Events uint64 `json:"events"`
}

// Stats returns the pool's sizes and counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, windows := p.core.Stats(), 0
	for _, m := range p.members {
		windows += len(m.windows)
	}
	return PoolStats{
		Used: s.Used, Requested: s.Requested, HighWater: s.UsedPeak, Cached: s.Cached,
		LargestFree: s.LargestFree, Deferred: s.Deferred, Pinned: s.Pinned,
		Segments: s.Segments, Windows: windows, Events: p.ledger.Position(),
	}
}

// Segments returns the segments that the pool has at the time of the call, ordered by ordinal. The
// pool is not locked during the iteration.
func (p *Pool) Segments() iter.Seq[SegmentEvent] {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []SegmentEvent
	for _, s := range p.segments {
		if s != nil {
			all = append(all, p.segmentEvent(s))
		}
	}
	return slices.Values(all)
}

// GroupStats contains a group's counters and settings.
type GroupStats struct {
	// Windows is the current number of windows.
	Windows int `json:"windows"`
	// Registrations counts the calls that registered segments, and Agreements the comparisons of
	// ledgers that found no difference.
	Registrations uint64 `json:"registrations"`
	Agreements    uint64 `json:"agreements"`
	// Paths counts collectives by path, including those in replays of graphs.
	Paths map[string]uint64 `json:"paths"`
	// Tuning describes how the paths are chosen.
	Tuning Tuning `json:"tuning"`
}

// Stats describes a Runtime with its pools and groups.
type Stats struct {
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Backend string `json:"backend"`
	Check   string `json:"check"`
	// Formula is the formula of reductions; see Options.Deterministic.
	Formula string                `json:"formula"`
	Pools   []PoolStats           `json:"pools"`
	Groups  map[string]GroupStats `json:"groups"`
}
