package tcp

import (
	"net"
	"sync"
)

// link is a connection to another rank. Senders never wait: they queue frames, encoded messages,
// for the goroutine that runs writeFrames. It encodes this rank's latest status itself.
//
// The queue needs no limit, because an exchange begins only after all ranks' messages of the
// previous one have arrived.
type link struct {
	rank    int    // group rank at the other end
	attempt uint32 // number of the handshake, from 1; 0 on the rank that dialed
	conn    *net.TCPConn

	mu           sync.Mutex // guards the fields below
	queue        [][]byte   // oldest frame first
	isLastQueued bool       // whether no frame may follow the queue
	isStatusDue  bool       // whether to send a status after the queue
	request      uint64     // number of the request that the status answers, or 0

	wake   chan struct{} // buffered; holds a value if the writer has work
	closed chan struct{} // closed by the reader of conn when it ends
}

// newLink does not start writeFrames.
func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank:   rank,
		conn:   conn,
		wake:   make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

// send queues a frame. It drops all frames after one with isLast set.
func (l *link) send(frame []byte, isLast bool) {
	l.mu.Lock()
	if !l.isLastQueued {
		l.queue = append(l.queue, frame)
		l.isLastQueued = isLast
	}

	l.mu.Unlock()
	l.wakeWriter()
}

func (l *link) sendStatus() {
	l.mu.Lock()
	l.isStatusDue = true
	l.mu.Unlock()
	l.wakeWriter()
}

// answer makes the next status the answer to a kindAskStatus.
func (l *link) answer(request uint64) {
	l.mu.Lock()
	l.isStatusDue = true
	l.request = request
	l.mu.Unlock()
	l.wakeWriter()
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default: // already requested
	}
}

// takeQueue empties the queue and returns its frames, followed by a status if one is due. hasLast
// reports whether no frames will follow.
func (l *link) takeQueue(
	encodeStatus func(request uint64) []byte,
) (frames net.Buffers, hasLast bool) {
	l.mu.Lock()
	frames = l.queue
	hasLast = l.isLastQueued
	isStatusDue := l.isStatusDue && !hasLast
	request := l.request
	l.queue = nil
	l.isStatusDue = false
	l.request = 0
	l.mu.Unlock() // encodeStatus locks groupState.mu, which comes before l.mu in the lock order
	if isStatusDue {
		frames = append(frames, encodeStatus(request))
	}

	return frames, hasLast
}

// writeFrames sends queued frames until it has sent the last one or the link is closed. It ignores
// a failed write, because reads from conn then fail, too.
func (l *link) writeFrames(encodeStatus func(request uint64) []byte) {
	for {
		select {
		case <-l.wake:
		case <-l.closed:
			return
		}

		frames, hasLast := l.takeQueue(encodeStatus)
		if _, err := frames.WriteTo(l.conn); err != nil {
			return
		}

		if hasLast {
			_ = l.conn.CloseWrite() // the other rank can still send
			return
		}
	}
}
