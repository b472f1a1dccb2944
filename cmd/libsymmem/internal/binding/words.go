package binding

import "sync/atomic"

// Words holds counters that callers read without a call. They never decrease, also across Close and
// Open.
type Words struct {
	// Pending grows when memory may have to be registered.
	Pending atomic.Int64
	// Windows grows when windows were added or removed.
	Windows atomic.Int64
	// Faults counts groups that have failed, as soon as this rank detects the failure.
	Faults atomic.Int64
	// Refused counts frees that failed.
	Refused atomic.Int64
	// Warnings counts warnings that TakeWarning returns.
	Warnings atomic.Int64
}
