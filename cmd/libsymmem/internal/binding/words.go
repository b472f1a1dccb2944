package binding

import "sync/atomic"

// Words are numbers that callers read without a call. They only grow, also across Open and Close.
type Words struct {
	// Pending changes whenever something may have to be registered.
	Pending atomic.Int64
	// Windows changes whenever windows have come or gone.
	Windows atomic.Int64
	// Faults counts groups that have failed, each as soon as this rank has seen it.
	Faults atomic.Int64
	// Refused counts frees that went wrong.
	Refused atomic.Int64
	// Warnings counts warnings that TakeWarning gives.
	Warnings atomic.Int64
}
