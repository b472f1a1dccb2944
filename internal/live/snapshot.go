package live

import "time"

// A job can have ranks on several machines. A Machine describes those on one machine, with a
// Snapshot for each. A rank has groups, with which it calls collectives, and pools, which allocate
// its memory. A pool places blocks in segments: ranges of memory. A window is a segment that is
// registered with a group. Each rank has a number in the world, the group of all ranks.

// Version is the version of the JSON document that a Machine is encoded to. It does not change when
// fields are added.
const Version = 1

// Machine describes the ranks of a job on one machine. /debug/symmem serves it as JSON.
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
	Size    int       `json:"size"`              // number of ranks in the job
	Process int       `json:"process"`           // ID of the process
	Opened  time.Time `json:"opened"`            // when the rank joined the job
	Backend string    `json:"backend"`           // such as "nccl" or "host"
	Device  string    `json:"device"`            // description for people
	GPU     int       `json:"gpu"`               // number of the GPU, or -1 for other devices
	Library string    `json:"library,omitempty"` // version of the backend's library, or empty
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
	Seconds  float64        `json:"seconds"`            // time since Since
	Ranks    []int          `json:"ranks"`              // world ranks that have not arrived
	Activity map[int]string `json:"activity,omitempty"` // what they do, by world rank, if known
}

// Group describes a group of ranks, as one of them knows it.
type Group struct {
	ID    string `json:"id"`
	Ranks []int  `json:"ranks"` // world ranks in group order
	// State is "open", "failing" (the ranks determine why it fails) or "failed".
	State          string  `json:"state"`
	Fault          string  `json:"fault,omitempty"` // why the group has failed, or empty
	TimeoutSeconds float64 `json:"timeout_seconds"` // after which other ranks are late
	Machines       int     `json:"machines"`        // number of machines of the group
	Windows        int     `json:"windows"`         // number of windows
	Registrations  uint64  `json:"registrations"`   // number of calls that registered segments
	Agreements     uint64  `json:"agreements"`      // comparisons of histories without a difference
	// Paths counts the group's collectives by path, the way in which symmem executed them. It
	// includes replays of CUDA graphs.
	Paths    map[string]uint64 `json:"paths"`
	Activity map[int]string    `json:"activity,omitempty"` // what other ranks do, by world rank
	Calls    []Calls           `json:"calls"`
}

// Calls summarizes the calls of one operation on one path. It counts only calls with sizes from
// MinBytes to less than MaxBytes, and no replays of CUDA graphs.
type Calls struct {
	Operation string `json:"operation"`
	Path      string `json:"path"`
	MinBytes  int64  `json:"min_bytes"`
	MaxBytes  int64  `json:"max_bytes"`
	Calls     uint64 `json:"calls"` // number of calls
	Bytes     uint64 `json:"bytes"` // sum of their sizes
	// Submit is the time until calls returned. On a GPU, calls return before their work runs.
	Submit Times `json:"submit"`
	// Run is the time that calls ran, including waits for other ranks. On a GPU, CUDA events
	// measure it. Run is nil for messages, which are not timed.
	Run *Times `json:"run,omitempty"`
}

// Times summarizes how long calls took.
type Times struct {
	Samples uint64  `json:"samples"` // number of measured calls
	Seconds float64 `json:"seconds"` // total time of these calls
	// RecentSeconds and RecentBytes are the average time and size of the latest samples.
	RecentSeconds float64 `json:"recent_seconds"`
	RecentBytes   int64   `json:"recent_bytes"`
}

// Pool describes a pool of a rank.
type Pool struct {
	ID     uint64 `json:"id"`             // counts the pools of a Domain from 0
	Domain string `json:"domain"`         // ID of the group that shares the pool, or empty
	Busy   bool   `json:"busy,omitempty"` // PoolStats is empty, because a call was using the pool
	PoolStats
	// Recent lists the latest events of the pool. First is the number of earlier events.
	First  uint64      `json:"first,omitempty"`
	Recent []Placement `json:"recent,omitempty"`
	// Registered lists the windows of the pool. Recent and Registered are nil unless the request
	// asks for events.
	Registered []Window `json:"registered,omitempty"`
}

// Placement describes an event of a pool. It is an array, so that its JSON is short. The constants
// below are the indexes of its elements.
type Placement [6]int64

const (
	placementKind      = iota // an event.Kind
	placementStream           // number of the stream
	placementSegment          // number of the segment
	placementOffset           // in the segment, in bytes
	placementSize             // in bytes
	placementRequested        // size that the caller requested, in bytes
)

// Window describes a segment that is registered with a group.
type Window struct {
	Group   string `json:"group"`
	Segment int32  `json:"segment"`
	Bytes   int64  `json:"bytes"`
}

// PoolStats mirrors symmem.PoolStats. Sizes are in bytes.
type PoolStats struct {
	Used        int64  `json:"used"`         // size of allocated blocks
	Requested   int64  `json:"requested"`    // size that callers requested for these
	HighWater   int64  `json:"high_water"`   // maximum of Used so far
	Cached      int64  `json:"cached"`       // size of free blocks
	LargestFree int64  `json:"largest_free"` // size of the largest free block
	Deferred    int64  `json:"deferred"`     // part of Used: freed, but other streams may use it
	Pinned      int64  `json:"pinned"`       // part of Used: graphs use it
	Segments    int    `json:"segments"`     // number of segments
	Windows     int    `json:"windows"`      // number of segments, once for each group
	Events      uint64 `json:"events"`       // number of events so far
}
