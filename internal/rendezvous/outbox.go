package rendezvous

import (
	"io"
	"sync"
)

// outboxLimit is the number of bytes of pending replies above which the server stops to read
// requests of the client. A single reply may be larger.
const outboxLimit = 1 << 20

// outbox holds the replies to a client until drain has written them. A client that does not read
// its replies therefore does not block the server.
type outbox struct {
	mu      sync.Mutex
	changed sync.Cond // signals changes of the fields below
	// pending and isClosed are guarded by mu.
	pending  []byte // replies that have not been written
	isClosed bool   // close was called, or a write has failed
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// post adds a reply. It never waits. After close, it has no effect.
func (o *outbox) post(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.isClosed {
		o.pending = append(o.pending, b...)
		o.changed.Broadcast()
	}
}

// awaitSpace waits until the pending replies do not exceed outboxLimit, or the outbox is closed.
func (o *outbox) awaitSpace() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > outboxLimit && !o.isClosed {
		o.changed.Wait()
	}
}

// close makes drain return after it has written all pending replies.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isClosed = true
	o.changed.Broadcast()
}

// drain writes replies to w until the outbox is closed and empty, or a write fails.
func (o *outbox) drain(w io.Writer) {
	for {
		b := o.next()
		if len(b) == 0 {
			return
		}

		if _, err := w.Write(b); err != nil {
			o.close()
			return
		}
	}
}

// next waits for replies, removes all of them and returns them. It returns nil if the outbox is
// closed and empty.
func (o *outbox) next() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) == 0 && !o.isClosed {
		o.changed.Wait()
	}

	b := o.pending
	o.pending = nil
	o.changed.Broadcast()
	return b
}
