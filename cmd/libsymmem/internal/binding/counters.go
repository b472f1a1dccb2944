package binding

import "sync/atomic"

// Counters holds counters that C callers read from memory without making a call. They never
// decrease, even across Close and Open.
type Counters struct {
	Pending  atomic.Int64 // increases when there may be memory to register
	Windows  atomic.Int64 // increases when windows are added or removed
	Faults   atomic.Int64 // number of failed groups
	Refused  atomic.Int64 // number of failed frees
	Warnings atomic.Int64 // number of warnings, including those already taken
}
