package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is one end of an unfinished message.
type End struct {
	of   *Messages
	plan *Plan
	control.Message
	check bool
	// captured reports whether the words belong to a graph.
	captured bool
	// state is kernels.MessageWaits while the stream waits: a Recv waits for its message, and a Send
	// of a graph waits until takenWord is 1. Other Sends do not wait; for them both are nil.
	state     *gpu.Word
	takenWord *uint32
	// full is the other word of the slot of a captured Send, and released the word of the header ring.
	full, released *uint32
	// done is recorded after the work of a Send; nil for a Recv.
	done  *stream.Event
	since time.Time // when the stream was first seen to wait; guarded by inbox.mu
	// releasing is the time at which release was first called for a Send; guarded by inbox.mu.
	releasing time.Time
	// before is the previous launch's end with the same words, or nil. handled reports that a Recv got
	// its message or was refused, or that the stream is known to have passed a Send. Both are guarded
	// by inbox.mu.
	before  *End
	handled bool

	// The following fields belong to a Recv and are guarded by inbox.mu.

	descriptor *kernels.Message
	// source and number identify the message, once it is claimed; announced is its header, once it was
	// read.
	source    int
	number    uint64
	claimed   bool
	announced *announcement
}

// over reports whether the stream has passed a Recv. The stream may already wait in the next launch
// of the same graph. inbox.mu is held.
func (e *End) over() bool {
	state := e.state.Value()
	return e.handled && (state == kernels.MessageDone || e.captured && state == kernels.MessageWaits)
}

// waits reports whether the stream is known to wait for the message, and sets since. inbox.mu is
// held.
func (e *End) waits() bool {
	if e.handled || e.before != nil && !e.before.handled || e.state == nil ||
		e.state.Value() != kernels.MessageWaits {
		return false
	}
	if e.since.IsZero() {
		e.since = time.Now()
	}
	return true
}

// release lets the stream of a captured Send continue, which overwrites the previous message. So
// that message is taken back first. If the receiver has already claimed it, the receiver's GPU
// writes taken after the copy; if that takes too long, the receiver is assumed dead. inbox.mu is
// held.
func (e *End) release() {
	atomic.StoreUint32(e.released, 1)
	if e.releasing.IsZero() {
		e.releasing = time.Now()
	}
	if atomic.CompareAndSwapUint32(e.full, 1, 0) || time.Since(e.releasing) > gpu.EndingTime/4 {
		e.releasing = time.Time{}
		atomic.StoreUint32(e.takenWord, 1)
	}
}

// refuse lets the stream of a Recv continue without a message, if canAccept allows. inbox.mu is
// held.
func (e *End) refuse() {
	if e.handled || !e.canAccept() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.handle()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// canAccept reports whether the descriptor of a Recv may be filled in. In a graph, all launches
// share it, so the previous launch must have passed it and this one must wait. inbox.mu is held.
func (e *End) canAccept() bool {
	return !e.captured ||
		(e.before == nil || e.before.handled) && e.state.Value() == kernels.MessageWaits
}

// handle marks a Recv as handled. inbox.mu is held.
func (e *End) handle() {
	if e.captured {
		e.state.Set(0) // so that the wait of the next launch can be seen
	}
	e.handled, e.before = true, nil
}

// Expect adds a Recv of a graph to the unfinished ones before the graph is launched.
func (e *End) Expect() { e.of.in.expect(e) }

// Unexpect removes a Recv of a graph that could not be launched.
func (e *End) Unexpect() { e.of.in.unexpect(e) }

// Track adds a Send of a graph to the unfinished ones once it was launched on a stream, whose lock
// is held. It must be called on a thread of the context.
func (e *End) Track(on *stream.Stream) error { return e.of.track(on, e) }
