package shm

import "sync/atomic"

type fault struct {
	set   atomic.Bool
	done  chan struct{} // closed after cause is written
	cause error
}

func (f *fault) Failed() <-chan struct{} { return f.done }

func (f *fault) HasFailed() bool { return f.set.Load() }

func (f *fault) Cause() error {
	if !f.set.Load() {
		return nil
	}

	<-f.done
	return f.cause
}

// record stores err and returns true if it is the first fault.
func (f *fault) record(err error) bool {
	if !f.set.CompareAndSwap(false, true) {
		return false
	}

	f.cause = err
	close(f.done)
	return true
}
