package nccl

import (
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// releaseMessages ends the waits of messages that will not come. It is called again and again,
// since a graph that is launched several times waits as often.
func (c *communicator) releaseMessages() {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.receives {
		e.refuse()
	}
	m.open = slices.DeleteFunc(m.open, func(e *end) bool { return e.handled })
	seen := map[*uint32]bool{} // of launches of one graph only one waits
	for _, e := range m.sends {
		if e.taken != nil && !seen[e.taken] && e.state.Value() == kernels.MessageWaits {
			e.release()
		}
		seen[e.taken] = true
	}
}

// release lets the stream of a Send go on, which then fills the memory of the message before. That
// must not be taken any more, so it is taken back. If the receiver has come for it, its GPU writes
// taken once it has copied the message, unless it is no more. m.mu is held.
func (e *end) release() {
	atomic.StoreUint32(e.released, 1)
	if e.releasing.IsZero() {
		e.releasing = time.Now()
	}
	if atomic.CompareAndSwapUint32(e.full, 1, 0) || time.Since(e.releasing) > gpu.EndingTime/4 {
		e.releasing = time.Time{}
		atomic.StoreUint32(e.taken, 1)
	}
}

// releaseLate is releaseMessages again and again, until no stream has yet to come past a message of
// a group that has ended. What they use stays until then, and with it the device.
func (c *communicator) releaseLate() {
	m := &c.messages
	if m.known == nil || m.late {
		return
	}
	m.late = true
	c.device.late.Add(1)
	go func() {
		defer c.device.late.Add(-1)
		for pause := gpu.Nap; c.carrying(); pause = min(2*pause, longestPause) {
			c.releaseMessages()
			time.Sleep(pause)
		}
	}()
}

// longestPause is how long a stream may have to wait for releaseLate.
const longestPause = 50 * time.Millisecond

// refuse lets the stream of a Recv go on without a message, if it may. m.mu is held.
func (e *end) refuse() {
	if e.handled || !e.turn() {
		return
	}
	e.descriptor.Bytes, e.descriptor.Taken = 0, 0
	e.handle()
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
