package tcp

import (
	"net"
	"sync"
)

// link is a connection to another rank. Messages are sent as frames, which are encoded messages.
//
// Suppose that this rank begins an exchange, and then fails. It queues a frame with its payload for
// the exchange, and then frames about the failure. It never waits for the other rank to read them.
// A goroutine that runs writeFrames, the writer, sends the queued frames.
//
// A status of this rank is not queued. Instead, the writer encodes the latest status when it sends
// the queue. So there is at most one status to send, even if the other rank reads slowly.
//
// The queue stays short without a limit: a rank begins an exchange only when it has received the
// messages of all ranks for the previous exchange.
type link struct {
	rank int // group rank at the other end
	// attempt is the number of the handshake that created the connection, from 1. At the end that
	// connected, it is 0.
	attempt uint32
	conn    *net.TCPConn

	mu           sync.Mutex
	queue        [][]byte // frames to send, oldest first; guarded by mu
	isLastQueued bool     // whether the last frame of the link has been queued; guarded by mu
	isStatusDue  bool     // whether to send a status after the queue; guarded by mu
	// request is the number of the other rank's request that the status answers, or 0 if the status
	// answers no request. It is guarded by mu.
	request uint64

	wake   chan struct{} // holds a value if the writer has work; has room for one
	closed chan struct{} // closed when this rank reads no more messages
}

// newLink returns a link without queued frames. The caller must start writeFrames.
func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank:   rank,
		conn:   conn,
		wake:   make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

// send queues a frame. If isLast is true, this is the last frame: send drops later ones.
func (l *link) send(frame []byte, isLast bool) {
	l.mu.Lock()
	if !l.isLastQueued {
		l.queue = append(l.queue, frame)
		l.isLastQueued = isLast
	}

	l.mu.Unlock()
	l.wakeWriter()
}

// sendStatus makes the writer send this rank's status.
func (l *link) sendStatus() {
	l.mu.Lock()
	l.isStatusDue = true
	l.mu.Unlock()
	l.wakeWriter()
}

// answer makes the writer send a status that answers a request (kindAskStatus) of the other rank.
func (l *link) answer(request uint64) {
	l.mu.Lock()
	l.isStatusDue = true
	l.request = request // with the same lock: otherwise, takeQueue could reset it in between
	l.mu.Unlock()
	l.wakeWriter()
}

// wakeWriter makes the writer look at the queue.
func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default: // the writer has not received the previous value yet
	}
}

// takeQueue empties the queue and returns its frames. If a status is due, it adds the frame that
// encodeStatus returns. hasLast reports whether no frames will follow.
func (l *link) takeQueue(
	encodeStatus func(request uint64) []byte,
) (frames net.Buffers, hasLast bool) {
	l.mu.Lock()
	frames = l.queue
	hasLast = l.isLastQueued
	isStatusDue := l.isStatusDue && !hasLast // no frame may follow the last one
	request := l.request
	l.queue = nil
	l.isStatusDue = false
	l.request = 0
	// encodeStatus locks groupState.mu. Calls of send hold that lock when they lock l.mu, so the
	// opposite order could deadlock.
	l.mu.Unlock()
	if isStatusDue {
		frames = append(frames, encodeStatus(request))
	}

	return frames, hasLast
}

// writeFrames sends queued frames until it has sent the last one. It also returns when closed is
// closed or a write fails. It reports no error, because the goroutine that reads from conn gets
// one, too.
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
