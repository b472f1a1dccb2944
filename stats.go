package symmem

// PoolStats describes a pool at a point in time. Sizes are in bytes.
type PoolStats struct {
	// Used is the size of all allocated blocks, and Requested what callers requested for them.
	Used      int64 `json:"used"`
	Requested int64 `json:"requested"`
	// HighWater is the maximum of Used so far.
	HighWater int64 `json:"high_water"`
	// Cached is the size of all free blocks.
	Cached      int64 `json:"cached"`
	LargestFree int64 `json:"largest_free"`
	// Deferred is the part of Used that has been freed but may still be in use on other streams.
	Deferred int64 `json:"deferred"`
	// Pinned is the part of Used that graphs use.
	Pinned   int64 `json:"pinned"`
	Segments int   `json:"segments"`
	// Windows counts each segment once for each group that has registered it.
	Windows int `json:"windows"`
	// Events is the number of events in the ledger.
	Events uint64 `json:"events"`
}

// GroupStats contains a group's counters and settings.
type GroupStats struct {
	Windows int `json:"windows"`
	// Registrations counts calls that have registered segments.
	Registrations uint64 `json:"registrations"`
	// Agreements counts comparisons of ledgers without a difference.
	Agreements uint64 `json:"agreements"`
	// Paths counts collectives by path, including replays of graphs.
	Paths  map[string]uint64 `json:"paths"`
	Tuning Tuning            `json:"tuning"`
}

// Stats describes a Runtime with its pools and groups.
type Stats struct {
	Rank    int                   `json:"rank"`
	Size    int                   `json:"size"`
	Backend string                `json:"backend"`
	Check   string                `json:"check"`
	Formula string                `json:"formula"`
	Pools   []PoolStats           `json:"pools"`
	Groups  map[string]GroupStats `json:"groups"`
}
