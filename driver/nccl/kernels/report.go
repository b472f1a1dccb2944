package kernels

import (
	"sync/atomic"
	"unsafe"
)

// Fault is the reason why a kernel has ended without a result: enum Fault of src/call.h.
type Fault uint32

// The faults.
const (
	None Fault = iota
	// Aborted means that the host has ended the kernel: see Report.End.
	Aborted
	// TimedOut means that a peer did not launch the call in time.
	TimedOut
	// Diverged means that a peer has launched a different call.
	Diverged
)

// Report receives the first fault of a rank's kernels, and holds the word by which the host ends
// kernels: struct Report of src/call.h. It is in host memory that the device reads and writes. The
// other fields may be read once fault is not None.
type Report struct {
	// Digest is the digest of this rank's call, and Theirs that of the different call.
	Digest, Theirs uint64
	// Epoch is the number of the call among the group's kernel launches, from 1.
	Epoch uint64
	// Ranks has a bit for each rank that is missing, or for the rank with the different call.
	Ranks uint32
	fault uint32
	end   uint32
	_     [7]uint32
}

// Fault returns the fault. It may be called while kernels run.
func (r *Report) Fault() Fault { return Fault(atomic.LoadUint32(&r.fault)) }

// Read returns a copy of the report, and whether it contains a fault. It may be called while
// kernels run.
func (r *Report) Read() (Report, bool) {
	fault := r.Fault()
	if fault == None {
		return Report{}, false
	}
	return Report{
		Digest: r.Digest, Theirs: r.Theirs, Epoch: r.Epoch, Ranks: r.Ranks, fault: uint32(fault),
	}, true
}

// End ends the kernels with this report that wait for peers. Once the caller has copied the 32 bits
// at EndOffset to FaultOffset of the exchange memory, later kernels end, too. End may be called
// while kernels run.
func (r *Report) End() { atomic.StoreUint32(&r.end, uint32(Aborted)) }

// EndOffset is the offset in a Report of the word that End writes.
const EndOffset = unsafe.Offsetof(Report{}.end)
