package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is a Send or a Recv of this rank whose message is unfinished. The caller of an unexported
// method must hold inbox.mu.
type End struct {
	messages *Messages
	plan     *Plan
	control.Message
	compare  bool // whether the arguments of the message's Send and Recv are compared
	captured bool // whether the call is in a CUDA graph, which then owns the words below
	// state is kernels.MessageWaits while the stream of a Recv waits for the message, or while the
	// stream of a captured Send waits for copiedWord to become 1. Other Sends have neither word.
	state      *gpu.Word
	copiedWord *uint32

	arrivedWord      *uint32       // in flags; only for a captured Send
	canOverwriteWord *uint32       // in headerRing; only for a captured Send
	doneEvent        *stream.Event // recorded after a Send; nil for a Recv

	// The following fields are guarded by inbox.mu.

	waitStart      time.Time // when the stream was first seen to wait
	releaseStart   time.Time // when release was first called for a Send
	previousLaunch *End      // the same call in the graph's previous launch, or nil
	// isHandled is set for a Recv once it has accepted its message or has been refused, and for a
	// Send once the stream has completed it.
	isHandled bool

	// The following fields are used only by a Recv. They are guarded by inbox.mu.

	descriptor   *kernels.Message // what the stream copies
	source       int              // source of the claimed message
	number       uint64           // number of the claimed message
	isClaimed    bool             // whether source and number are known
	announcement *announcement    // nil until the header of the claimed message has been read
}

// isComplete reports whether the stream has completed a Recv.
func (e *End) isComplete() bool {
	state := e.state.Value()
	return e.isHandled && (state == kernels.MessageDone || e.captured && state == kernels.MessageWaits)
}

// checkWait reports whether the stream is known to be waiting, and notes when the wait began.
func (e *End) checkWait() bool {
	if e.isHandled || e.previousLaunch != nil && !e.previousLaunch.isHandled || e.state == nil ||
		e.state.Value() != kernels.MessageWaits {
		return false
	}
	if e.waitStart.IsZero() {
		e.waitStart = time.Now()
	}
	return true
}

// release lets the stream of a captured Send continue and overwrite the previous message. release
// first withdraws that message. If the receiver has already claimed it, the receiver's GPU may
// still be copying, and release must be called again until that GPU has set copiedWord. After a
// time limit, release assumes that the receiver is dead.
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

// refuse lets the stream of a Recv continue without copying a message.
func (e *End) refuse() {
	if e.isHandled || !e.canAccept() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.markHandled()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// canAccept reports whether the descriptor of a Recv can be filled in. All launches of a graph
// share the descriptor. The Recv of the previous launch must therefore have been handled, and the
// stream must be waiting in the current launch.
func (e *End) canAccept() bool {
	if !e.captured {
		return true
	}
	return (e.previousLaunch == nil || e.previousLaunch.isHandled) &&
		e.state.Value() == kernels.MessageWaits
}

func (e *End) markHandled() {
	if e.captured {
		e.state.Set(0) // to detect the wait of the next launch
	}
	e.isHandled, e.previousLaunch = true, nil
}

// AddReceive adds a graph's Recv to the unfinished receives, before the graph is launched.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive removes a graph's Recv that could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend adds a graph's Send to the unfinished sends, after the graph has been launched. The CUDA
// context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }
