package live

import "time"

// Version is the version of the JSON document. It does not change when fields are added.
const Version = 1

// Machine describes the ranks of a job on one machine, as JSON at /debug/symmem.
type Machine struct {
	Version  int        `json:"version"`
	Time     time.Time  `json:"time"`
	Host     string     `json:"host"`
	ServedBy int        `json:"served_by"` // the rank that answered the request
	Ranks    []Snapshot `json:"ranks"`     // in ascending order
}

// Snapshot describes a rank at a point in time.
type Snapshot struct {
	Rank int `json:"rank"`
	// If Error is set, the rank did not answer, and the fields below are empty.
	Error   string    `json:"error,omitempty"`
	Size    int       `json:"size"`
	Process int       `json:"process"`
	Opened  time.Time `json:"opened"`
	Backend string    `json:"backend"`
	Device  string    `json:"device"`
	GPU     int       `json:"gpu"` // number of the GPU, or -1 for other devices
	Library string    `json:"library,omitempty"`
	Check   string    `json:"check"`             // level of checks
	Formula string    `json:"formula"`           // order of additions in sums
	Address string    `json:"address,omitempty"` // TCP address that the rank serves, or empty
	// Waits lists the calls that wait for other ranks, oldest first. Groups is sorted by ID.
	Waits  []Wait  `json:"waits"`
	Groups []Group `json:"groups"`
	Pools  []Pool  `json:"pools"`
}

// Wait describes a call in which a rank is waiting for other ranks.
type Wait struct {
	Group    string         `json:"group"`
	InCall   string         `json:"doing"` // such as "AllReduce 12 of group world"
	Since    time.Time      `json:"since"`
	Seconds  float64        `json:"seconds"`
	Ranks    []int          `json:"ranks"`              // world ranks that have not arrived
	Activity map[int]string `json:"activity,omitempty"` // what they are doing, by world rank
}

// Group describes a group of ranks.
type Group struct {
	ID    string `json:"id"`
	Ranks []int  `json:"ranks"` // world ranks in group order
	// State is "open", "failing" (the ranks determine why it fails) or "failed".
	State          string  `json:"state"`
	Fault          string  `json:"fault,omitempty"` // why the group has failed
	TimeoutSeconds float64 `json:"timeout_seconds"`
	Machines       int     `json:"machines"`
	Windows        int     `json:"windows"`       // registered segments
	Registrations  uint64  `json:"registrations"` // calls that registered segments
	Agreements     uint64  `json:"agreements"`    // comparisons of histories without a difference
	// Paths counts the group's collectives, including replays of CUDA graphs, by path (the way in
	// which symmem executed them).
	Paths    map[string]uint64 `json:"paths"`
	Activity map[int]string    `json:"activity,omitempty"` // of other ranks, by world rank
	Calls    []Calls           `json:"calls"`
}

// Calls summarizes the calls of one operation on one path with sizes from MinBytes to less than
// MaxBytes. It omits replays of CUDA graphs.
type Calls struct {
	Operation string `json:"operation"`
	Path      string `json:"path"`
	MinBytes  int64  `json:"min_bytes"`
	MaxBytes  int64  `json:"max_bytes"`
	Calls     uint64 `json:"calls"`
	Bytes     uint64 `json:"bytes"`
	// Submit is the time until calls returned. On a GPU, calls return before their work runs.
	Submit Times `json:"submit"`
	// Run is the time that calls ran, including waits for other ranks, or nil for messages, which are
	// not timed. On a GPU, CUDA events measure it.
	Run *Times `json:"run,omitempty"`
}

// Times summarizes how long calls took. Seconds is the total time of Samples calls.
type Times struct {
	Samples uint64  `json:"samples"`
	Seconds float64 `json:"seconds"`
	// Average time and size of the latest samples.
	RecentSeconds float64 `json:"recent_seconds"`
	RecentBytes   int64   `json:"recent_bytes"`
}

// Pool describes a pool.
type Pool struct {
	ID     uint64 `json:"id"`             // counts the pools of a Domain from 0
	Domain string `json:"domain"`         // ID of the group that shares the pool, or empty
	Busy   bool   `json:"busy,omitempty"` // PoolStats is empty, because a call was using the pool
	PoolStats
	// Recent lists the latest events of the pool, which follow First earlier ones.
	First  uint64      `json:"first,omitempty"`
	Recent []Placement `json:"recent,omitempty"`
	// Registered lists the windows of the pool. Recent and Registered are nil unless requested.
	Registered []Window `json:"registered,omitempty"`
}

// Placement describes an event of a pool. Its elements have the indexes below.
type Placement [6]int64

const (
	placementKind = iota // an event.Kind
	placementStream
	placementSegment
	placementOffset
	placementSize
	placementRequested
)

// Window is a segment (a range of a pool's memory) that is registered with a group.
type Window struct {
	Group   string `json:"group"`
	Segment int32  `json:"segment"`
	Bytes   int64  `json:"bytes"`
}

// PoolStats mirrors symmem.PoolStats.
type PoolStats struct {
	Used        int64  `json:"used"`
	Requested   int64  `json:"requested"`
	HighWater   int64  `json:"high_water"`
	Cached      int64  `json:"cached"`
	LargestFree int64  `json:"largest_free"`
	Deferred    int64  `json:"deferred"`
	Pinned      int64  `json:"pinned"`
	Segments    int    `json:"segments"`
	Windows     int    `json:"windows"`
	Events      uint64 `json:"events"`
}
