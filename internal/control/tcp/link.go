package tcp

import (
	"net"
	"sync"
)

// link is a connection to another rank. Senders never wait: they put encoded messages, called
// frames, into the queue of the goroutine that runs writeFrames. Statuses are not queued. The
// goroutine encodes the latest one when it is due.
//
// The queue needs no limit, because this rank begins an exchange only after it has received all
// ranks' messages of the previous one.
type link struct {
	rank    int    // group rank at the other end
	attempt uint32 // number of the handshake, from 1; 0 on the rank that dialed
	conn    *net.TCPConn

	mu           sync.Mutex // guards the fields below
	queue        [][]byte   // oldest frame first
	isLastQueued bool       // whether the link's last frame has been queued
	isStatusDue  bool       // whether to send a status after the queue
	request      uint64     // number of the kindAskStatus that this status answers, or 0

	wake   chan struct{} // buffered; holds a value if writeFrames has work
	closed chan struct{} // closed when the goroutine that reads conn ends
}

func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank:   rank,
		conn:   conn,
		wake:   make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

// send queues a frame, or drops the frame if the last one has been queued.
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

// answer sends a status as the answer to a kindAskStatus with this number.
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
	default: // already awake
	}
}

// takeQueue removes the frames from the queue and adds a status if one is due. hasLast reports
// whether the link's last frame is among them.
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

// writeFrames sends frames until it has sent the last one or the link is closed. It drops the error
// of a failed write, because reads from conn then fail with an error of their own.
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
