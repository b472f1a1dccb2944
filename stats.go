package symmem

import (
	"iter"
	"slices"
)

// PoolStats describes a pool at a point in time. Sizes are in bytes.
type PoolStats struct {
	// Used is the size of all allocated blocks.
	Used int64 `json:"used"`
	// Requested is the part of Used that callers requested.
	Requested int64 `json:"requested"`
	// HighWater is the maximum of Used so far.
	HighWater int64 `json:"high_water"`
	// Cached is the free memory of the pool.
	Cached int64 `json:"cached"`
	// LargestFree is the size of the largest free block.
	LargestFree int64 `json:"largest_free"`
	// Deferred is the size of freed blocks that other streams may still use. It is part of Used.
	Deferred int64 `json:"deferred"`
	// Pinned is the size of blocks that graphs use. It is part of Used.
	Pinned int64 `json:"pinned"`
	// Segments is the number of segments.
	Segments int `json:"segments"`
	// Windows is the number of windows. Each group that registers a segment adds one.
	Windows int `json:"windows"`
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
	// Registrations counts the calls that registered segments.
	Registrations uint64 `json:"registrations"`
	// Agreements counts the comparisons of ledgers that found no difference.
	Agreements uint64 `json:"agreements"`
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
