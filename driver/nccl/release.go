package nccl

import (
	"slices"
	"sync/atomic"
	"time"
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
	for _, e := range m.sends {
		if e.taken != nil {
			atomic.StoreUint32(e.taken, 1)
		}
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
		for pause := nap; c.carrying(); pause = min(2*pause, longestPause) {
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
