package rendezvous

import (
	"io"
	"sync"
)

// outbox buffers the replies to one client, so that the server never blocks on a client that does
// not read them. One goroutine runs drain. To bound the buffer, the goroutine that reads requests
// calls awaitSpace after each request.
type outbox struct {
	mu       sync.Mutex // guards the fields below
	changed  sync.Cond  // signals changes of pending and isClosed
	pending  []byte     // concatenated replies
	isClosed bool       // close was called, or a write has failed
}

// outboxLimit is the number of pending bytes above which awaitSpace waits.
const outboxLimit = 1 << 20

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

// post adds a reply without waiting for space. After close, it has no effect.
func (o *outbox) post(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.isClosed {
		o.pending = append(o.pending, b...)
		o.changed.Broadcast()
	}
}

// awaitSpace waits while more than outboxLimit bytes are pending and the outbox is open.
func (o *outbox) awaitSpace() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > outboxLimit && !o.isClosed {
		o.changed.Wait()
	}
}

// close makes drain return after it has written the pending replies.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isClosed = true
	o.changed.Broadcast()
}

// drain writes replies to w until the outbox is closed and empty, or a write fails.
func (o *outbox) drain(w io.Writer) {
	for {
		replies := o.takePending()
		if len(replies) == 0 {
			return
		}

		if _, err := w.Write(replies); err != nil {
			o.close()
			return
		}
	}
}

// takePending waits for replies and removes them. It returns nil if the outbox is closed and empty.
func (o *outbox) takePending() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) == 0 && !o.isClosed {
		o.changed.Wait()
	}

	replies := o.pending
	o.pending = nil
	o.changed.Broadcast() // wakes awaitSpace
	return replies
}
