package kernels

import (
	"sync/atomic"
	"unsafe"
)

// Fault is the reason why a kernel exited without a result, as in src/exchange.h.
type Fault uint32

const (
	// None means that no kernel has failed.
	None Fault = iota
	// Aborted means that the host stopped the kernel (see Report.End).
	Aborted
	// TimedOut means that a peer did not launch the call in time.
	TimedOut
	// Diverged means that a peer launched a different call.
	Diverged
)

// Report receives the first fault of a rank's kernels, and lets the host stop kernels, in the
// layout of struct Report in src/exchange.h. Once fault is not None, the fields before it may be
// read. All methods may be called while kernels are running.
type Report struct {
	Digest, PeerDigest uint64 // of this rank's call, and of the peer's different call
	Epoch              uint64 // number of the kernel launch in the group, from 1
	// Ranks is a bit set of the missing ranks after TimedOut, and the number of the rank with the
	// different call after Diverged.
	Ranks uint32
	fault uint32
	end   uint32
	_     [7]uint32
}

// Fault returns the fault, or None.
func (r *Report) Fault() Fault { return Fault(atomic.LoadUint32(&r.fault)) }

// Read returns a copy of the report, and whether it contains a fault.
func (r *Report) Read() (Report, bool) {
	fault := r.Fault()
	if fault == None {
		return Report{}, false
	}

	return Report{
		Digest: r.Digest, PeerDigest: r.PeerDigest, Epoch: r.Epoch, Ranks: r.Ranks, fault: uint32(fault),
	}, true
}

// End makes waiting kernels exit. To make later kernels exit, copy the 32 bits at EndOffset to
// FaultOffset in the exchange memory.
func (r *Report) End() { atomic.StoreUint32(&r.end, uint32(Aborted)) }

// EndOffset is the offset of the word that End writes.
const EndOffset = unsafe.Offsetof(Report{}.end)
