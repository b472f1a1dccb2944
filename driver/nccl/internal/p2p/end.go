package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is an unfinished Send or Recv of this rank. Unexported methods require inbox.mu.
type End struct {
	messages *Messages
	plan     *Plan
	control.Message
	isCompared bool // whether the Send and the Recv are compared
	isCaptured bool // whether the End is in a CUDA graph, which then owns the words below
	// state is kernels.MessageWaits while the stream of a Recv or a captured Send waits. It is nil
	// for other Sends.
	state *gpu.Word
	// The following words are for a captured Send, which waits until copiedWord is 1.
	copiedWord, arrivedWord, canOverwriteWord *uint32
	doneEvent                                 *stream.Event // recorded after a Send

	// inbox.mu guards the following fields.

	waitStart      time.Time // when the stream was first known to wait, or 0
	releaseStart   time.Time // when release was first called for a Send, or 0
	previousLaunch *End      // the End of the graph's previous launch, or nil
	// isHandled is set once a Recv has accepted its message or has been refused, or once the stream
	// has completed a Send.
	isHandled bool

	// Only a Recv uses the following fields.

	descriptor   *kernels.Message
	isClaimed    bool // source and number of the message are known
	source       int
	number       uint64
	announcement *announcement // nil until the header has been read
}

// isComplete reports whether the stream has completed a Recv.
func (e *End) isComplete() bool {
	if !e.isHandled {
		return false
	}
	state := e.state.Value()
	return state == kernels.MessageDone || e.isCaptured && state == kernels.MessageWaits
}

// checkWait reports whether the stream is known to be waiting, and sets waitStart.
func (e *End) checkWait() bool {
	if e.isHandled || e.state == nil {
		return false
	}
	if e.previousLaunch != nil && !e.previousLaunch.isHandled {
		return false
	}
	if e.state.Value() != kernels.MessageWaits {
		return false
	}
	if e.waitStart.IsZero() {
		e.waitStart = time.Now()
	}
	return true
}

// release withdraws the previous message of a captured Send, so that the stream can overwrite it.
// Callers must repeat release while the receiver's GPU may be copying that message: until it has
// set copiedWord or a time limit has passed.
func (e *End) release() {
	atomic.StoreUint32(e.canOverwriteWord, 1)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}
	if atomic.CompareAndSwapUint32(e.arrivedWord, 1, 0) ||
		time.Since(e.releaseStart) > gpu.KernelEndTimeout/4 {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.copiedWord, 1)
	}
}

// refuse ends the wait of a Recv without a copy.
func (e *End) refuse() {
	if e.isHandled || !e.canAccept() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// canAccept reports whether a Recv's descriptor, which all launches of a graph share, is unused.
func (e *End) canAccept() bool {
	if !e.isCaptured {
		return true
	}
	return (e.previousLaunch == nil || e.previousLaunch.isHandled) &&
		e.state.Value() == kernels.MessageWaits
}

func (e *End) markHandled() {
	if e.isCaptured {
		e.state.Set(0) // so that checkWait detects the wait of the next launch
	}
	e.isHandled, e.previousLaunch = true, nil
}

// AddReceive starts the delivery for a graph's Recv. It must be called before the graph is
// launched.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive removes a graph's Recv that could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend adds a graph's Send to the unfinished ones. It must be called after the graph has been
// launched. The CUDA context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }
