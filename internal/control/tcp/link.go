package tcp

import (
	"net"
	"sync"
)

// link sends frames (encoded messages) to one rank. A sender never waits for a rank that does not
// read. The queue needs no limit: before a rank begins an exchange, it has received all other
// ranks' messages of the previous one.
type link struct {
	rank int // group rank at the other end
	// attempt counts handshakes from 1. It is set only at the accepting end.
	attempt uint32
	conn    *net.TCPConn

	mu           sync.Mutex
	queue        [][]byte      // guarded by mu
	isStatusDue  bool          // a status is to be sent; guarded by mu
	request      uint64        // the kindAskStatus that this status answers, or 0; guarded by mu
	isLastQueued bool          // no frame may follow; guarded by mu
	wake         chan struct{} // has an entry if there is something to send
	closed       chan struct{} // closed when no more is read
}

func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank: rank, conn: conn, wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// send drops frames after one with isLast.
func (l *link) send(frame []byte, isLast bool) {
	l.mu.Lock()
	if !l.isLastQueued {
		l.queue, l.isLastQueued = append(l.queue, frame), isLast
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

// answer sends a status for a kindAskStatus.
func (l *link) answer(request uint64) {
	l.mu.Lock()
	l.request = request
	l.mu.Unlock()
	l.sendStatus()
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// takeQueue empties the queue. If a status is due, it appends the frame of encodeStatus, which it
// calls without mu, because that locks groupState.mu.
func (l *link) takeQueue(
	encodeStatus func(request uint64) []byte,
) (frames net.Buffers, hasLast bool) {
	l.mu.Lock()
	frames, hasLast = l.queue, l.isLastQueued
	isStatusDue, request := l.isStatusDue && !hasLast, l.request
	l.queue, l.isStatusDue, l.request = nil, false, 0
	l.mu.Unlock()
	if isStatusDue {
		frames = append(frames, encodeStatus(request))
	}
	return frames, hasLast
}

// writeFrames ignores errors, which the reading goroutine gets, too.
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
			_ = l.conn.CloseWrite()
			return
		}
	}
}
