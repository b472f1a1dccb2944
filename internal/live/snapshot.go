package live

import "time"

// Version is the version of the JSON encoding of a Machine. New fields do not change it.
const Version = 1

// Machine describes the ranks of a job on one machine. The path /debug/symmem serves it as JSON.
type Machine struct {
	Version  int        `json:"version"`
	Time     time.Time  `json:"time"`
	Host     string     `json:"host"`
	ServedBy int        `json:"served_by"` // the rank that answered the request; 0 from Read
	Ranks    []Snapshot `json:"ranks"`     // in ascending order
}

// Snapshot describes a rank at a point in time. A rank that did not answer has only Rank and Error.
type Snapshot struct {
	Rank    int       `json:"rank"`
	Error   string    `json:"error,omitempty"`   // why the rank did not answer
	Size    int       `json:"size"`              // ranks in the job
	Process int       `json:"process"`           // process ID
	Opened  time.Time `json:"opened"`            // when the rank joined the job
	Backend string    `json:"backend"`           // such as "nccl" or "host"
	Device  string    `json:"device"`            // description
	GPU     int       `json:"gpu"`               // -1 for other devices
	Library string    `json:"library,omitempty"` // version of the backend's library
	Check   string    `json:"check"`             // level of consistency checks
	Formula string    `json:"formula"`           // order in which reductions combine values
	Address string    `json:"address,omitempty"` // TCP address of its server, or empty
	Waits   []Wait    `json:"waits"`             // oldest first
	Groups  []Group   `json:"groups"`            // sorted by ID
	Pools   []Pool    `json:"pools"`
}

// Wait describes a call in which a rank is waiting for other ranks.
type Wait struct {
	Group    string         `json:"group"`
	InCall   string         `json:"doing"` // such as "AllReduce 12 of group world"
	Since    time.Time      `json:"since"`
	Seconds  float64        `json:"seconds"`            // so far
	Ranks    []int          `json:"ranks"`              // awaited ranks of the job
	Activity map[int]string `json:"activity,omitempty"` // what they are doing, if known
}

// Group describes a group as one of its ranks sees it.
type Group struct {
	ID             string  `json:"id"`
	Ranks          []int   `json:"ranks"`           // ranks of the job, by number in the group
	State          string  `json:"state"`           // "open", "failed", or "failing" without a Fault
	Fault          string  `json:"fault,omitempty"` // why the group has failed
	TimeoutSeconds float64 `json:"timeout_seconds"` // limit of each wait for other ranks
	Machines       int     `json:"machines"`
	Windows        int     `json:"windows"`       // number of registered segments
	Registrations  uint64  `json:"registrations"` // number of calls that registered segments
	Agreements     uint64  `json:"agreements"`    // number of ledger comparisons without a difference
	// Paths counts collectives by path, including replays of CUDA graphs.
	Paths    map[string]uint64 `json:"paths"`
	Activity map[int]string    `json:"activity,omitempty"` // what ranks of the job are doing, if known
	Calls    []Calls           `json:"calls"`
}

// Calls summarizes the calls of one operation on one path, in one range of sizes. It excludes
// replays of CUDA graphs.
type Calls struct {
	Operation string `json:"operation"`
	Path      string `json:"path"`
	MinBytes  int64  `json:"min_bytes"`
	MaxBytes  int64  `json:"max_bytes"`     // exclusive
	Calls     uint64 `json:"calls"`         // number of calls
	Bytes     uint64 `json:"bytes"`         // sum of their sizes
	Submit    Times  `json:"submit"`        // from a call to its return
	Run       *Times `json:"run,omitempty"` // includes waits for other ranks; nil for Send and Recv
}

// Times summarizes how long calls took.
type Times struct {
	Samples uint64  `json:"samples"` // number of measured calls
	Seconds float64 `json:"seconds"` // total time of these calls
	// RecentSeconds and RecentBytes are averages over the latest samples.
	RecentSeconds float64 `json:"recent_seconds"`
	RecentBytes   int64   `json:"recent_bytes"`
}

// Pool describes a memory pool of a rank. Recent and Registered are empty if no events were
// requested.
type Pool struct {
	ID     uint64 `json:"id"`             // number of the pool in the Domain, from 0
	Domain string `json:"domain"`         // ID of the group that shares the pool, or empty
	Busy   bool   `json:"busy,omitempty"` // in use by a call; PoolStats is empty
	PoolStats
	First      uint64      `json:"first,omitempty"`  // number of events before Recent
	Recent     []Placement `json:"recent,omitempty"` // latest events
	Registered []Window    `json:"registered,omitempty"`
}

// Placement encodes an event of a pool as an array, to keep the JSON short.
type Placement [6]int64

// Indexes of a Placement.
const (
	placementKind      = iota // an event.Kind
	placementStream           // number of the stream
	placementSegment          // number of the segment
	placementOffset           // bytes from the start of the segment
	placementSize             // bytes
	placementRequested        // bytes
)

// Window is a registration of a segment of a pool with a group.
type Window struct {
	Group   string `json:"group"`
	Segment int32  `json:"segment"`
	Bytes   int64  `json:"bytes"`
}

// PoolStats mirrors symmem.PoolStats. Sizes are in bytes.
type PoolStats struct {
	Used        int64  `json:"used"`         // in allocated blocks
	Requested   int64  `json:"requested"`    // requested for allocated blocks
	HighWater   int64  `json:"high_water"`   // maximum of Used so far
	Cached      int64  `json:"cached"`       // in free blocks
	LargestFree int64  `json:"largest_free"` // size of the largest free block
	Deferred    int64  `json:"deferred"`     // part of Used: freed, but other streams may use it
	Pinned      int64  `json:"pinned"`       // part of Used, needed by CUDA graphs
	Segments    int    `json:"segments"`
	Windows     int    `json:"windows"` // registrations of segments with groups
	Events      uint64 `json:"events"`  // number of events so far
}
