package symmem

import (
	"iter"
	"slices"
)

// PoolStats describes a pool at one moment. Sizes are in bytes.
type PoolStats struct {
	// Used is what callers hold, Requested what they asked for in it, and HighWater the most that
	// Used ever was.
	Used      int64 `json:"used"`
	Requested int64 `json:"requested"`
	HighWater int64 `json:"high_water"`
	// Cached is free memory of the pool, and LargestFree its largest block.
	Cached      int64 `json:"cached"`
	LargestFree int64 `json:"largest_free"`
	// Deferred waits for other streams, Pinned belongs to captured graphs. Both are part of Used.
	Deferred int64 `json:"deferred"`
	Pinned   int64 `json:"pinned"`
	// Segments and Windows are numbers: windows are counted once for each group.
	Segments int `json:"segments"`
	Windows  int `json:"windows"`
	// Events is the length of the ledger.
	Events uint64 `json:"events"`
}

// Stats describes the pool.
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

// Segments are the pool's segments at the moment of the call, in the order of their ordinals. The
// pool is not locked while the caller goes through them.
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

// GroupStats counts what a group has done.
type GroupStats struct {
	// Windows is the number of windows now.
	Windows int `json:"windows"`
	// Registrations counts the calls that registered something, Agreements the comparisons of
	// ledgers that found them equal.
	Registrations uint64 `json:"registrations"`
	Agreements    uint64 `json:"agreements"`
	// Paths counts collectives by the path they took, replays of graphs included.
	Paths map[string]uint64 `json:"paths"`
	// Tuning describes how their paths are chosen.
	Tuning Tuning `json:"tuning"`
}

// Stats is everything that a Runtime knows about itself.
type Stats struct {
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Backend string `json:"backend"`
	Check   string `json:"check"`
	// Formula is what reductions compute: see Options.Deterministic.
	Formula string                `json:"formula"`
	Pools   []PoolStats           `json:"pools"`
	Groups  map[string]GroupStats `json:"groups"`
}
