package binding

import "sync/atomic"

// Words holds counters that callers read without making a call. They never decrease, even across
// Close and Open.
type Words struct {
	// Pending increases when there may be memory to register.
	Pending atomic.Int64
	// Windows increases when windows are added or removed.
	Windows atomic.Int64
	// Faults counts failed groups. It increases as soon as this rank detects a failure.
	Faults atomic.Int64
	// Refused counts failed frees.
	Refused atomic.Int64
	// Warnings counts the warnings that TakeWarning returns.
	Warnings atomic.Int64
}
