package rendezvous

import (
	"io"
	"sync"
)

// The server stops reading a client's requests while more bytes of replies are pending. A single
// reply may be larger.
const outboxLimit = 1 << 20

type outbox struct {
	mu      sync.Mutex
	changed sync.Cond
	// pending and isClosed are guarded by mu.
	pending  []byte
	isClosed bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.changed.L = &o.mu
	return o
}

func (o *outbox) post(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.isClosed {
		o.pending = append(o.pending, b...)
		o.changed.Broadcast()
	}
}

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

// next waits for replies. It returns nil if the outbox is closed and empty.
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
