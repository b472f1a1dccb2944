package binding

import "sync/atomic"

// Counters holds counters that C callers read from memory. They never decrease, even across Close
// and Open.
type Counters struct {
	Pending  atomic.Int64 // increases when there may be memory to register
	Windows  atomic.Int64 // increases when windows are added or removed
	Faults   atomic.Int64 // failed groups
	Refused  atomic.Int64 // failed frees
	Warnings atomic.Int64 // including those already taken
}
