package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is one end of a message: an unfinished Send or Recv of this rank. A Send or Recv in a CUDA
// graph has an End for each launch, and all these Ends share memory, flags and state. Callers of
// unexported methods must hold inbox.mu.
type End struct {
	messages        *Messages
	plan            *Plan
	control.Message      // Number counts the calls with the same operation, peer and tag
	isCompared      bool // whether the Send and the Recv are compared
	isCaptured      bool // whether the call is in a CUDA graph
	// state is kernels.MessageWaits while the stream waits, and kernels.MessageDone after a Recv. It
	// is nil for a Send outside graphs, which never waits.
	state     *gpu.Word
	doneEvent *stream.Event // recorded after a Send; nil for a Recv

	// Only a captured Send has the following flags, in memory shared with the receiver.

	arrivedFlag      *uint32 // set from the arrival of the data until the receiver claims the message
	copiedFlag       *uint32 // set once the receiver has copied the previous message
	canOverwriteFlag *uint32 // set after a failure: the receiver must not claim messages of graphs

	// inbox.mu guards the following fields.

	waitStart      time.Time // when noteWait first saw the stream wait, or zero
	releaseStart   time.Time // when release was first called during this wait, or zero
	previousLaunch *End      // of the same call in the graph, or nil
	isHandled      bool      // the Recv was accepted or refused, or the Send has completed

	// Only a Recv uses the following fields.

	descriptor   *kernels.Message // addresses for the GPU, which copies once descriptor.Go is set
	isAssigned   bool             // whether source and number are known
	source       int              // group rank of the sender
	number       uint64           // of the message
	announcement *announcement    // nil until this rank has read the message's header
}

func (e *End) isCapturedSend() bool { return e.copiedFlag != nil }

func (e *End) isPreviousHandled() bool {
	return e.previousLaunch == nil || e.previousLaunch.isHandled
}

// noteWait reports whether the stream is known to be waiting, and sets waitStart.
func (e *End) noteWait() bool {
	if e.isHandled || e.state == nil {
		return false
	}

	if !e.isPreviousHandled() {
		return false // the previous launch may still use the state
	}

	if e.state.Value() != kernels.MessageWaits {
		return false
	}

	if e.waitStart.IsZero() {
		e.waitStart = time.Now()
	}

	return true
}

// canAccept reports whether the host may fill in the descriptor of a Recv. In a graph, an earlier
// launch uses the same descriptor until the stream waits for this launch's message.
func (e *End) canAccept() bool {
	if !e.isCaptured {
		return true
	}

	return e.isPreviousHandled() && e.state.Value() == kernels.MessageWaits
}

func (e *End) markHandled() {
	if e.isCaptured {
		e.state.Set(0) // the next launch sets it to MessageWaits
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
	// Since markHandled has cleared the state, only the next launch can have set MessageWaits.
	isInNextLaunch := e.isCaptured && state == kernels.MessageWaits
	return state == kernels.MessageDone || isInNextLaunch
}

// refuse ends the wait of a Recv without a copy. It does nothing if a captured Recv does not wait
// yet.
func (e *End) refuse() {
	if e.isHandled || !e.canAccept() {
		return
	}

	e.descriptor.Bytes = 0
	e.descriptor.Taken = 0 // no flag to set after the copy
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, flagSet)
}

// release ends the wait of a captured Send after a failure of the group, so that the stream can
// overwrite the previous message. It withdraws this message from the receiver. If the receiver has
// already claimed the message, release does nothing until copyTimeout has passed. Call it
// repeatedly until the stream no longer waits.
func (e *End) release() {
	atomic.StoreUint32(e.canOverwriteFlag, flagSet)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}

	copyTimeout := gpu.KernelEndTimeout / 4 // all streams of the group must end in KernelEndTimeout
	isWithdrawn := atomic.CompareAndSwapUint32(e.arrivedFlag, flagSet, flagCleared)
	isLate := time.Since(e.releaseStart) > copyTimeout
	if isWithdrawn || isLate {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.copiedFlag, flagSet)
	}
}

// AddReceive starts the delivery of a captured Recv's message. Call it before the graph is
// launched.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive undoes AddReceive if the graph could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend tracks a captured Send until it completes. Call it after the graph has been launched. The
// CUDA context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }
