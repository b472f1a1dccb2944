package tcp

import (
	"net"
	"sync"
)

// link sends and receives frames over a connection to one rank. Frames are queued, so that a sender
// never waits for a rank that does not read. The queue needs no limit, because no rank is more than
// one step ahead of another.
type link struct {
	rank int // group rank of the other end
	// attempt is the number of the connecting rank's handshake, from 1, or 0 at the connecting end.
	attempt uint32
	conn    *net.TCPConn

	mu     sync.Mutex
	queue  [][]byte      // encoded frames; guarded by mu
	status bool          // whether to send a status; guarded by mu
	last   bool          // whether the last frame is queued; guarded by mu
	wake   chan struct{} // has an entry if there is something to send
	closed chan struct{} // closed when the reader returns
}

func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank: rank, conn: conn, wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// send queues a frame. It drops frames after the last one.
func (l *link) send(frame []byte, last bool) {
	l.mu.Lock()
	if !l.last {
		l.queue, l.last = append(l.queue, frame), last
	}
	l.mu.Unlock()
	l.wakeWriter()
}

func (l *link) sendStatus() {
	l.mu.Lock()
	l.status = true
	l.mu.Unlock()
	l.wakeWriter()
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drain empties the queue and returns its frames. status is set if a status is due. last is set if
// frames contains the last frame.
func (l *link) drain() (frames net.Buffers, status, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	frames, status, last = l.queue, l.status && !l.last, l.last
	l.queue, l.status = nil, false
	return frames, status, last
}

// write sends queued frames until it has sent the last one or the connection is closed. It ignores
// errors, because the reader gets the same errors.
func (l *link) write(status func() []byte) {
	for {
		select {
		case <-l.wake:
		case <-l.closed:
			return
		}
		frames, due, last := l.drain()
		if due {
			frames = append(frames, status())
		}
		if _, err := frames.WriteTo(l.conn); err != nil {
			return
		}
		if last {
			_ = l.conn.CloseWrite()
			return
		}
	}
}
