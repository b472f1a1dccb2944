package kernels

import (
	"sync/atomic"
	"unsafe"
)

// Fault says why a kernel ended without a result: enum Fault of src/call.h.
type Fault uint32

// The faults.
const (
	None Fault = iota
	// Aborted: the host has ended the kernels, see Report.End.
	Aborted
	// TimedOut: ranks did not come in time.
	TimedOut
	// Diverged: a rank came to another call.
	Diverged
)

// Report is written by the first thread that meets a fault, and holds the word by which the host
// ends kernels: struct Report of src/call.h. It lies in host memory that the device reads and
// writes. The other fields may be read once fault is not None.
type Report struct {
	// Digest and Theirs are those of this rank's call and of the other one.
	Digest, Theirs uint64
	// Epoch is the number of the call among those of the group that kernels ran, from 1.
	Epoch uint64
	// Ranks is the set of those that did not come (a bit each), or the one that came to another
	// call.
	Ranks uint32
	fault uint32
	end   uint32
	_     [7]uint32
}

// Fault returns what has happened. It may be called while kernels run.
func (r *Report) Fault() Fault { return Fault(atomic.LoadUint32(&r.fault)) }

// Read returns a copy, and reports whether there is a fault in it. It may be called while kernels
// run.
func (r *Report) Read() (Report, bool) {
	fault := r.Fault()
	if fault == None {
		return Report{}, false
	}
	return Report{
		Digest: r.Digest, Theirs: r.Theirs, Epoch: r.Epoch, Ranks: r.Ranks, fault: uint32(fault),
	}, true
}

// End ends the kernels that have this report: those that wait for other ranks now, and later ones,
// too, once the 32 bits at EndOffset have been copied to FaultOffset. It may be called while
// kernels run.
func (r *Report) End() { atomic.StoreUint32(&r.end, uint32(Aborted)) }

// EndOffset is where in a Report the word lies that End writes.
const EndOffset = unsafe.Offsetof(Report{}.end)
