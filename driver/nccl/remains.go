package nccl

import (
	"errors"
	"slices"
	"sync"
)

// errKept says why memory is not given back.
var errKept = errors.New("work that has not ended may use memory of the GPU that was to be given " +
	"back: it stays mapped until the process ends")

// remains is the work of a device that outlives its streams, and what that costs.
type remains struct {
	mu   sync.Mutex
	ends []*event // what closed streams had still to do ends there; guarded by mu
	// kept tells that something was not given back. It is guarded by mu.
	kept bool
}

// add notes the end of what a closed stream has still to do.
func (r *remains) add(end *event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, end)
}

// keep notes that something is not given back, and returns the error that says so.
func (r *remains) keep() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = true
	return errKept
}

// keeps tells whether something was not given back.
func (r *remains) keeps() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

// spare returns errKept if a closed stream has work under way, which may use any memory of the
// device: then who asks keeps what it has. Where a kernel is stuck nothing is given back anyway.
func (r *remains) spare() error {
	if stuck.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = slices.DeleteFunc(r.ends, (*event).Done)
	if len(r.ends) == 0 {
		return nil
	}
	r.kept = true
	return errKept
}
