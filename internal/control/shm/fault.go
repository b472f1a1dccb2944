package shm

import "sync/atomic"

// fault records whether and why a group has failed.
type fault struct {
	set   atomic.Bool
	ended chan struct{}
	cause error // written before ended is closed
}

// Failed returns a channel that is closed when the group fails.
func (f *fault) Failed() <-chan struct{} { return f.ended }

// HasFailed reports whether Cause has an error.
func (f *fault) HasFailed() bool { return f.set.Load() }

// Cause returns the first fault.
func (f *fault) Cause() error {
	if !f.set.Load() {
		return nil
	}
	<-f.ended
	return f.cause
}

// end moves the group out of its open state, and reports whether it was the first call.
func (f *fault) end(err error) bool {
	if !f.set.CompareAndSwap(false, true) {
		return false
	}
	f.cause = err
	close(f.ended)
	return true
}
