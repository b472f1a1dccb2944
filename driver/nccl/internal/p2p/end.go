package p2p

import (
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// End is one end of a message that is under way.
type End struct {
	of   *Messages
	plan *Plan
	control.Message
	check bool
	// captured reports whether the words are a graph's.
	captured bool
	// state is kernels.MessageWaits while the stream waits, or nil if it never does: a Recv waits for
	// its message, and a Send of a graph waits until takenWord is 1.
	state     *gpu.Word
	takenWord *uint32
	// full is the other word of the slot of such a Send, and released the receiver's word for all.
	full, released *uint32
	// done is recorded behind the work of a Send, else nil.
	done  *stream.Event
	since time.Time // since when the stream is known to wait; guarded by inbox.mu
	// releasing is since when a Send is to go on although the group has ended; guarded by
	// inbox.mu
	releasing time.Time
	// before is the previous end that uses the same words of a graph, or nil. handled reports that a
	// Recv has got its message or was refused, or that the stream is known to have passed a Send. Both
	// are guarded by inbox.mu.
	before  *End
	handled bool

	// The following fields belong to a Recv and are guarded by inbox.mu.

	descriptor *kernels.Message
	// source and number name the message, once it is claimed; announced is its header, once that has
	// come.
	source    int
	number    uint64
	claimed   bool
	announced *announcement
}

// over reports whether the stream is past a Recv. If it is one of a graph the stream may have come
// to the next launch of it already. inbox.mu is held.
func (e *End) over() bool {
	state := e.state.Value()
	return e.handled && (state == kernels.MessageDone || e.captured && state == kernels.MessageWaits)
}

// waits reports whether the stream of a message is known to wait for it, and since when. inbox.mu
// is held.
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

// release lets the stream of a Send go on, which then fills the memory of the message before. That
// must not be taken any more, so it is taken back. If the receiver has come for it, its GPU writes
// taken once it has copied the message, unless it is no more. inbox.mu is held.
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

// refuse lets the stream of a Recv go on without a message, if it may. inbox.mu is held.
func (e *End) refuse() {
	if e.handled || !e.mayTake() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.handle()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// mayTake reports whether a Recv may be given a message: that of a graph has its descriptor to
// itself once the launch before is past it and this one waits. inbox.mu is held.
func (e *End) mayTake() bool {
	return !e.captured ||
		(e.before == nil || e.before.handled) && e.state.Value() == kernels.MessageWaits
}

// handle notes that a Recv has what it waits for. inbox.mu is held.
func (e *End) handle() {
	if e.captured {
		e.state.Set(0) // so that the next launch is seen to wait
	}
	e.handled, e.before = true, nil
}

// Expect notes a Recv of a graph before the graph is queued.
func (e *End) Expect() { e.of.expect(e) }

// Unexpect forgets a Recv of a graph that could not be queued.
func (e *End) Unexpect() { e.of.unexpect(e) }

// Track notes a Send of a graph that was queued on a stream, whose lock is held. It is called on a
// thread of the context.
func (e *End) Track(on *stream.Stream) error { return e.of.track(on, e) }
