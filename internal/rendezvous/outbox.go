package rendezvous

import (
	"io"
	"sync"
)

// outboxRoom is how many bytes may wait for a client before we stop reading its requests. One
// reply may exceed it.
const outboxRoom = 1 << 20

// outbox holds the replies that a client has not read yet. Post never blocks, so a slow client does
// not delay others.
type outbox struct {
	mu      sync.Mutex
	changed sync.Cond
	// pending and closed are guarded by mu.
	pending []byte
	closed  bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// post appends b; after close it does nothing.
func (o *outbox) post(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.pending = append(o.pending, b...)
		o.changed.Broadcast()
	}
}

// room blocks while the client has too much to take.
func (o *outbox) room() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > outboxRoom && !o.closed {
		o.changed.Wait()
	}
}

// close ends room and, once all is taken, drain.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Broadcast()
}

// drain writes to w until the outbox is closed and empty, or w fails, which closes it.
func (o *outbox) drain(w io.Writer) {
	for {
		b := o.take()
		if len(b) == 0 {
			return
		}
		if _, err := w.Write(b); err != nil {
			o.close()
			return
		}
	}
}

// take blocks until there is something, or returns nothing at the end.
func (o *outbox) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) == 0 && !o.closed {
		o.changed.Wait()
	}
	b := o.pending
	o.pending = nil
	o.changed.Broadcast()
	return b
}
