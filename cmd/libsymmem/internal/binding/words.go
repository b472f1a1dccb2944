package binding

import "sync/atomic"

// Words holds counters that callers read without a call. They never decrease, not even across Close
// and Open.
type Words struct {
	// Pending grows when there may be memory to register.
	Pending atomic.Int64
	// Windows grows when windows are added or removed.
	Windows atomic.Int64
	// Faults counts failed groups. It grows as soon as this rank detects the failure.
	Faults atomic.Int64
	// Refused counts failed frees.
	Refused atomic.Int64
	// Warnings counts warnings that TakeWarning returns.
	Warnings atomic.Int64
}
