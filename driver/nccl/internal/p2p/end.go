package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is one end of an unfinished message: a Send or a Recv of this rank.
type End struct {
	messages *Messages
	plan     *Plan
	control.Message
	check    bool // whether the two ends are compared
	captured bool // whether the words below belong to a graph
	// state is kernels.MessageWaits while the stream waits. In a Recv, the stream waits for the
	// message. In a captured Send, it waits for takenWord to become 1. A Send that is not captured
	// does not wait, and has neither of these two words.
	state     *gpu.Word
	takenWord *uint32
	// full and released are set for a captured Send. full points to the slot's word in flags.full, and
	// released points to headerRing.released.
	full, released *uint32
	// done is recorded after the work of a Send. It is nil for a Recv.
	done  *stream.Event
	since time.Time // when the stream was first seen to wait; guarded by inbox.mu
	// releaseStart is the time of the first call of release for a Send. It is guarded by inbox.mu.
	releaseStart time.Time
	// previous is the End of the same call in the graph's previous launch, or nil. handled is set
	// for a Recv once it has accepted its message or has been refused, and for a Send once the
	// stream has passed it. Both are guarded by inbox.mu.
	previous *End
	handled  bool

	// The following fields are used only by a Recv. They are guarded by inbox.mu.

	descriptor *kernels.Message
	// source and number identify the claimed message. announced is its header, or nil until the
	// header has been read.
	source    int
	number    uint64
	claimed   bool
	announced *announcement
}

// passed reports whether the stream has passed a Recv. The stream may then already be waiting in
// the graph's next launch. The caller must hold inbox.mu.
func (e *End) passed() bool {
	state := e.state.Value()
	return e.handled && (state == kernels.MessageDone || e.captured && state == kernels.MessageWaits)
}

// waits reports whether the stream is known to be waiting for the message. If so, waits sets
// e.since unless it is already set. The caller must hold inbox.mu.
func (e *End) waits() bool {
	if e.handled || e.previous != nil && !e.previous.handled || e.state == nil ||
		e.state.Value() != kernels.MessageWaits {
		return false
	}
	if e.since.IsZero() {
		e.since = time.Now()
	}
	return true
}

// release lets the stream of a captured Send continue. Because the stream then overwrites the
// previous message, release first withdraws that message. If the receiver has already claimed it,
// the receiver's GPU may still be copying it, and release must be called again until that GPU has
// written taken. After a time limit, release assumes that the receiver is dead. The caller must
// hold inbox.mu.
func (e *End) release() {
	atomic.StoreUint32(e.released, 1)
	if e.releaseStart.IsZero() {
		e.releaseStart = time.Now()
	}
	if atomic.CompareAndSwapUint32(e.full, 1, 0) ||
		time.Since(e.releaseStart) > gpu.KernelEndTimeout/4 {
		e.releaseStart = time.Time{}
		atomic.StoreUint32(e.takenWord, 1)
	}
}

// refuse lets the stream of a Recv continue without a message. It does nothing unless canAccept
// returns true. The caller must hold inbox.mu.
func (e *End) refuse() {
	if e.handled || !e.canAccept() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.handle()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// canAccept reports whether the descriptor of a Recv may be filled in. All launches of a graph
// share the descriptor, so the Recv of the previous launch must have been handled, and the stream
// must be waiting in the current launch. The caller must hold inbox.mu.
func (e *End) canAccept() bool {
	return !e.captured ||
		(e.previous == nil || e.previous.handled) && e.state.Value() == kernels.MessageWaits
}

// handle marks a Recv as handled. The caller must hold inbox.mu.
func (e *End) handle() {
	if e.captured {
		e.state.Set(0) // so that the wait of the next launch can be detected
	}
	e.handled, e.previous = true, nil
}

// Expect adds a graph's Recv to the unfinished receives. It is called before the graph is launched.
func (e *End) Expect() { e.messages.in.expect(e) }

// Unexpect removes a graph's Recv that could not be launched.
func (e *End) Unexpect() { e.messages.in.unexpect(e) }

// Track adds a graph's Send to the unfinished sends. It is called once the graph has been launched,
// on a thread where the context is current. The caller must hold the stream's lock.
func (e *End) Track(s *stream.Stream) error { return e.messages.track(s, e) }
