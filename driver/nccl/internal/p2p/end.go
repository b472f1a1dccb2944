package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is one end of a message: an unfinished Send or Recv of this rank. A captured End is a launch
// of a Send or Recv in a CUDA graph. Callers of unexported methods must hold inbox.mu.
type End struct {
	messages        *Messages
	plan            *Plan
	control.Message      // number of the call, which is also the message's number for a Send
	isCompared      bool // whether the Send and the Recv are compared
	isCaptured      bool // whether the End is in a CUDA graph, which then owns the words below
	// state is kernels.MessageWaits while the stream of a Recv or a captured Send waits. It is nil
	// for other Sends.
	state *gpu.Word

	// The next fields are words in the receiver's mailbox (shared host memory). They are set only
	// for a captured Send, which waits until the receiver has copied the previous launch's message.

	copiedWord       *uint32 // 1 if the receiver has copied the previous message; ends the wait
	arrivedWord      *uint32 // 1 from the arrival of a message until the receiver claims it
	canOverwriteWord *uint32 // 1 once the receiver must not claim messages of graphs any more

	doneEvent *stream.Event // recorded after a Send; nil for a Recv

	// inbox.mu guards the following fields.

	waitStart      time.Time // when the stream was first known to wait, or zero
	releaseStart   time.Time // when release was first called for a captured Send, or zero
	previousLaunch *End      // the End of the graph's previous launch, or nil
	// isHandled is set once a Recv has accepted its message or has been refused, or once the stream
	// has completed a Send.
	isHandled bool

	// Only a Recv uses the following fields.

	descriptor   *kernels.Message // describes the copy; the stream waits for its word Go
	isClaimed    bool             // source and number of the message are known
	source       int              // group rank of the sender
	number       uint64           // number of the message
	announcement *announcement    // nil until the header has been read
}

// isCapturedSend reports whether e is a launch of a Send in a graph.
func (e *End) isCapturedSend() bool { return e.copiedWord != nil }

// isComplete reports whether the stream has completed a Recv.
func (e *End) isComplete() bool {
	if !e.isHandled {
		return false
	}

	state := e.state.Value()
	// All launches of a graph share the state. markHandled has reset it, so the next launch waits.
	isNextWaiting := e.isCaptured && state == kernels.MessageWaits
	return state == kernels.MessageDone || isNextWaiting
}

// checkWait reports whether the stream is known to be waiting. If it is, checkWait sets waitStart.
func (e *End) checkWait() bool {
	if e.isHandled || e.state == nil {
		return false
	}

	if e.previousLaunch != nil && !e.previousLaunch.isHandled {
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

// release ends the wait of a captured Send after a failure of the group. To do so, it withdraws the
// previous message, which the stream then overwrites.
//
// If the receiver has already claimed that message, its GPU may be copying it. In this case, the
// wait goes on until a time limit has passed. Callers must repeat release until the wait has ended.
func (e *End) release() {
	atomic.StoreUint32(e.canOverwriteWord, 1)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}

	isWithdrawn := atomic.CompareAndSwapUint32(e.arrivedWord, 1, 0)
	isLate := time.Since(e.releaseStart) > gpu.KernelEndTimeout/4
	if isWithdrawn || isLate {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.copiedWord, 1)
	}
}

// refuse ends the wait of a Recv without a copy. It does nothing for a launch of a graph whose wait
// has not begun.
func (e *End) refuse() {
	if e.isHandled || !e.canAccept() {
		return
	}

	e.descriptor.Bytes = 0
	e.descriptor.Taken = 0
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// canAccept reports whether a Recv may use its descriptor. All launches of a graph share one, so a
// captured Recv may use it only while the stream waits in this launch.
func (e *End) canAccept() bool {
	if !e.isCaptured {
		return true
	}

	isPreviousHandled := e.previousLaunch == nil || e.previousLaunch.isHandled
	return isPreviousHandled && e.state.Value() == kernels.MessageWaits
}

// markHandled notes that a Recv has accepted its message or has been refused.
func (e *End) markHandled() {
	if e.isCaptured {
		e.state.Set(0) // so that checkWait detects the wait of the next launch
	}

	e.isHandled = true
	e.previousLaunch = nil
}

// AddReceive starts the delivery for a graph's Recv. Call it before the graph is launched.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive removes a graph's Recv that could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend adds a graph's Send to the unfinished sends. Call it after the graph has been launched.
// The CUDA context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }
