package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// An End is one end of a message. For example, rank 0 sends a message to rank 1. Then rank 0 has an
// End for the Send, and rank 1 has one for the Recv.
//
// A Send or a Recv can be captured in a CUDA graph. Suppose that rank 0 captures the Send, and
// launches the graph twice. Each launch sends a message, and has an End. But both launches use the
// same memory and the same flags, so the second launch must wait until rank 1 has copied the first
// message. The flags are in the mailbox of rank 1, which is memory that both ranks share:
//
//	arrived       1 from the arrival of a message until the receiver claims it
//	copied        1 if the receiver has copied the latest message; ends the wait of the next launch
//	canOverwrite  1 after a failure: the receiver must not claim messages of graphs any more
//
// A Recv waits for its message. It has a descriptor, which says what the GPU must copy. The stream
// waits until the word Go of the descriptor is 1, and then copies the message. All launches of a
// captured Recv use the same descriptor.

// End is an unfinished Send or Recv of this rank. If it is captured, it is one launch of a Send or
// Recv in a graph. Callers of unexported methods must hold inbox.mu.
type End struct {
	messages        *Messages
	plan            *Plan
	control.Message      // number of the call, which is also the message's number for a Send
	isCompared      bool // whether the Send and the Recv are compared
	isCaptured      bool
	// state is kernels.MessageWaits while the stream of a Recv or a captured Send waits. It is
	// kernels.MessageDone after the copy of a Recv. It is nil for a Send that is not captured.
	state     *gpu.Word
	doneEvent *stream.Event // recorded after a Send; nil for a Recv

	// These flags are set only for a captured Send.
	arrivedFlag      *uint32
	copiedFlag       *uint32
	canOverwriteFlag *uint32

	// inbox.mu guards the following fields.

	waitStart      time.Time // when the stream was first known to wait, or zero
	releaseStart   time.Time // when release was first called during the current wait, or zero
	previousLaunch *End      // the End of the graph's previous launch, or nil
	// isHandled is set once a Recv has accepted its message or has been refused, or once the stream
	// has completed a Send.
	isHandled bool

	// Only a Recv uses the following fields.

	descriptor   *kernels.Message
	isAssigned   bool          // source and number are known
	source       int           // group rank of the sender
	number       uint64        // number of the message
	announcement *announcement // the message; nil until this rank has read its header
}

// isCapturedSend reports whether e is a launch of a Send in a graph.
func (e *End) isCapturedSend() bool { return e.copiedFlag != nil }

// isPreviousHandled reports whether the previous launch, if there is one, is handled.
func (e *End) isPreviousHandled() bool {
	return e.previousLaunch == nil || e.previousLaunch.isHandled
}

// noteWait reports whether the stream is known to be waiting. If it is, noteWait sets waitStart.
func (e *End) noteWait() bool {
	if e.isHandled || e.state == nil {
		return false
	}

	if !e.isPreviousHandled() {
		return false // state may be that of the previous launch
	}

	if e.state.Value() != kernels.MessageWaits {
		return false
	}

	if e.waitStart.IsZero() {
		e.waitStart = time.Now()
	}

	return true
}

// canAccept reports whether a Recv may use its descriptor. A captured Recv may use it only while
// the stream waits in this launch, because other launches use it, too.
func (e *End) canAccept() bool {
	if !e.isCaptured {
		return true
	}

	return e.isPreviousHandled() && e.state.Value() == kernels.MessageWaits
}

// markHandled notes that a Recv has accepted its message or has been refused.
func (e *End) markHandled() {
	if e.isCaptured {
		e.state.Set(0) // so that noteWait detects the wait of the next launch
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
	// markHandled has set the state of a captured Recv to 0. If it is MessageWaits again, the stream
	// has reached the next launch.
	isNextWaiting := e.isCaptured && state == kernels.MessageWaits
	return state == kernels.MessageDone || isNextWaiting
}

// refuse ends the wait of a Recv without a copy. It does nothing for a launch of a graph whose wait
// has not begun.
func (e *End) refuse() {
	if e.isHandled || !e.canAccept() {
		return
	}

	e.descriptor.Bytes = 0
	e.descriptor.Taken = 0 // the GPU sets no flag after the copy
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// release ends the wait of a captured Send after a failure of the group. To do so, it withdraws the
// previous message, which the stream then overwrites.
//
// If the receiver has already claimed that message, its GPU may be copying it. In this case, the
// wait goes on until a time limit has passed. Callers must repeat release until the wait has ended.
func (e *End) release() {
	atomic.StoreUint32(e.canOverwriteFlag, 1)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}

	// A group that ends waits for up to KernelEndTimeout until its streams have completed their work,
	// so the limit is only a part of it.
	limit := gpu.KernelEndTimeout / 4
	isWithdrawn := atomic.CompareAndSwapUint32(e.arrivedFlag, 1, 0)
	isLate := time.Since(e.releaseStart) > limit
	if isWithdrawn || isLate {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.copiedFlag, 1)
	}
}

// AddReceive starts the delivery for a graph's Recv. Call it before the graph is launched.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive removes a graph's Recv that could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend adds a graph's Send to the unfinished sends. Call it after the graph has been launched.
// The CUDA context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }
