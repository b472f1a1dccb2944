package tcp

import (
	"net"
	"sync"
)

// link sends frames (encoded messages) over a connection to one rank. Frames are queued, so that a
// sender never waits for a rank that does not read. The queue needs no limit, because no rank is
// more than one step ahead of another.
type link struct {
	rank int // group rank of the other end
	// attempt is the number of the connecting rank's handshake, from 1. At the connecting end it is
	// 0.
	attempt uint32
	conn    *net.TCPConn

	mu           sync.Mutex
	queue        [][]byte      // encoded frames; guarded by mu
	isStatusDue  bool          // whether to send a status; guarded by mu
	isLastQueued bool          // whether no frame may follow; guarded by mu
	wake         chan struct{} // has an entry if a frame or a status is to be sent
	closed       chan struct{} // closed when the goroutine that reads the connection returns
}

func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank: rank, conn: conn, wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// send queues a frame. If isLast is set, later calls drop their frames.
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

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// takeQueue empties the queue and returns its frames. hasLast is set if frames contains the last
// frame.
func (l *link) takeQueue() (frames net.Buffers, isStatusDue, hasLast bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	frames, isStatusDue, hasLast = l.queue, l.isStatusDue && !l.isLastQueued, l.isLastQueued
	l.queue, l.isStatusDue = nil, false
	return frames, isStatusDue, hasLast
}

// writeFrames sends queued frames until it has sent the last one or the connection is closed. It
// ignores errors, because the goroutine that reads the connection gets the same errors.
func (l *link) writeFrames(encodeStatus func() []byte) {
	for {
		select {
		case <-l.wake:
		case <-l.closed:
			return
		}
		frames, isStatusDue, hasLast := l.takeQueue()
		if isStatusDue {
			frames = append(frames, encodeStatus())
		}
		if _, err := frames.WriteTo(l.conn); err != nil {
			return
		}
		if hasLast {
			_ = l.conn.CloseWrite()
			return
		}
	}
}
