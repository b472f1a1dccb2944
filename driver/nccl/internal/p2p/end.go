package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is an unfinished Send or Recv of this rank. A Send or Recv in a CUDA graph has an End for
// each launch, and these Ends share their memory, flags and state. Callers of unexported methods
// must hold inbox.mu.
type End struct {
	messages        *Messages
	plan            *Plan
	control.Message               // Number counts the calls with the same operation, peer and tag
	isCompared      bool          // the Send is compared with its Recv
	isCaptured      bool          // the call is in a CUDA graph
	state           *gpu.Word     // like kernels.Message.State; nil for a Send outside graphs
	doneEvent       *stream.Event // recorded after a Send; nil for a Recv

	// Flags of a captured Send, shared with the receiver.
	arrivedFlag      *uint32 // the receiver can claim the message
	copiedFlag       *uint32 // the receiver has copied the previous message
	canOverwriteFlag *uint32 // a failure has occurred: the receiver must not claim the message

	// State of the wait, guarded by inbox.mu.
	waitStart      time.Time // when checkWait first saw the stream wait, or zero
	releaseStart   time.Time // time of the first release of this wait, or zero
	previousLaunch *End      // nil for the first launch, and once isHandled is set
	isHandled      bool      // the Recv was accepted or refused, or the Send has completed

	// State of a Recv, guarded by inbox.mu.
	descriptor   *kernels.Message // addresses for the GPU, which copies once descriptor.Go is set
	isAssigned   bool             // source and sentNumber are known
	source       int              // group rank of the sender
	sentNumber   uint64           // see header.number
	announcement *announcement    // nil until this rank has read the message's header
}

const notWaiting = 0 // value of state, like kernels.MessageWaits

func (e *End) isCapturedSend() bool { return e.copiedFlag != nil }

// hasReachedWait reports whether the stream has begun to wait in this launch.
func (e *End) hasReachedWait() bool {
	isPreviousHandled := e.previousLaunch == nil || e.previousLaunch.isHandled
	return isPreviousHandled && e.state.Value() == kernels.MessageWaits
}

// checkWait reports whether the stream waits in this launch. The first true result sets waitStart.
func (e *End) checkWait() (isWaiting bool) {
	if e.isHandled || e.state == nil || !e.hasReachedWait() {
		return false
	}

	if e.waitStart.IsZero() {
		e.waitStart = time.Now()
	}

	return true
}

// ownsDescriptor reports whether a Recv's descriptor belongs to this launch, not an earlier one.
func (e *End) ownsDescriptor() bool {
	return !e.isCaptured || e.hasReachedWait()
}

func (e *End) markHandled() {
	if e.isCaptured {
		e.state.Set(notWaiting)
	}

	e.isHandled = true
	e.previousLaunch = nil
}

// isComplete reports whether the stream has completed a Recv.
func (e *End) isComplete() bool {
	if !e.isHandled {
		return false
	}

	state := e.state.Value()
	// After markHandled, only the next launch can set MessageWaits.
	hasNextLaunchBegun := e.isCaptured && state == kernels.MessageWaits
	return state == kernels.MessageDone || hasNextLaunchBegun
}

// refuse ends the wait of a Recv without a copy. It ignores handled Recvs and captured Recvs that
// do not wait yet.
func (e *End) refuse() {
	if e.isHandled || !e.ownsDescriptor() {
		return
	}

	e.descriptor.Bytes = 0
	e.descriptor.Taken = 0 // no flag to set after the copy
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, flagSet)
}

// release ends the wait of a captured Send after the group has failed. The stream then overwrites
// the previous message, so release first withdraws it. If the receiver has already claimed it, the
// wait ends only after copyTimeout. Call release repeatedly until the stream no longer waits.
func (e *End) release() {
	atomic.StoreUint32(e.canOverwriteFlag, flagSet)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}

	copyTimeout := gpu.KernelEndTimeout / 4 // leaves time for the work after the wait
	isWithdrawn := atomic.CompareAndSwapUint32(e.arrivedFlag, flagSet, flagCleared)
	isLate := time.Since(e.releaseStart) > copyTimeout
	if isWithdrawn || isLate {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.copiedFlag, flagSet)
	}
}
