package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"symmem/internal/sys"
)

// link is a connection to another rank. One goroutine runs writeFrames, and another runs
// readFrames. The queue stays short, because ranks exchange messages in lockstep.
type link struct {
	rank    int    // group rank at the other end
	attempt uint32 // number of the handshake, from 1; 0 on the rank that dialed
	conn    *net.TCPConn

	mu            sync.Mutex // guards the fields below
	queue         [][]byte   // frames (encoded messages), oldest first
	hasLast       bool       // whether sendLast was called
	isStatusDue   bool       // whether to write a kindStatus after the queue
	statusRequest uint64     // number of the kindAskStatus that the due status answers, or 0

	wake     chan struct{} // buffered; holds a value if writeFrames has work
	readDone chan struct{} // closed when readFrames returns
}

func newLink(rank int, conn *net.TCPConn) *link {
	return &link{
		rank:     rank,
		conn:     conn,
		wake:     make(chan struct{}, 1),
		readDone: make(chan struct{}),
	}
}

// send queues a frame. It has no effect after sendLast.
func (l *link) send(frame []byte) {
	l.mu.Lock()
	if !l.hasLast {
		l.queue = append(l.queue, frame)
	}

	l.mu.Unlock()
	l.wakeWriter()
}

// sendLast queues a frame, and ends writeFrames after it. It must be called only once.
func (l *link) sendLast(frame []byte) {
	l.mu.Lock()
	l.queue = append(l.queue, frame)
	l.hasLast = true
	l.mu.Unlock()
	l.wakeWriter()
}

// sendStatus makes writeFrames send the status that is current when it writes.
func (l *link) sendStatus() {
	l.mu.Lock()
	l.isStatusDue = true
	l.mu.Unlock()
	l.wakeWriter()
}

// answer is sendStatus in response to a kindAskStatus. A later request replaces an unanswered one.
func (l *link) answer(request uint64) {
	l.mu.Lock()
	l.isStatusDue = true
	l.statusRequest = request
	l.mu.Unlock()
	l.wakeWriter()
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default: // wake already holds a value
	}
}

// writeFrames sends frames until it has sent the last one or readFrames returns. It drops the error
// of a failed write, because readFrames then fails, too.
func (l *link) writeFrames(encodeStatus func(request uint64) []byte) {
	for {
		select {
		case <-l.wake:
		case <-l.readDone:
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

// takeQueue empties the queue, and appends a status if one is due and the last frame is not queued.
func (l *link) takeQueue(
	encodeStatus func(request uint64) []byte,
) (frames net.Buffers, hasLast bool) {
	l.mu.Lock()
	frames = l.queue
	hasLast = l.hasLast
	needsStatus := l.isStatusDue && !l.hasLast
	request := l.statusRequest
	l.queue = nil
	l.isStatusDue = false
	l.statusRequest = 0
	l.mu.Unlock() // before encodeStatus, which locks groupState.mu
	if needsStatus {
		frames = append(frames, encodeStatus(request))
	}

	return frames, hasLast
}

// readFrames handles the other rank's messages until that rank leaves or the connection fails.
func readFrames(p *Plane, l *link) {
	defer close(l.readDone)
	err := handleFrames(p, l)
	if errors.Is(err, ErrProtocol) {
		_ = p.Fail(fmt.Errorf("reading a message of rank %d: %w", p.cfg.Group.Ranks[l.rank], err))
	}

	if sys.IsSilence(err) {
		markSilent(p, l.rank)
	} else {
		p.markLost(l.rank) // ignores a rank that has left
	}

	_ = l.conn.Close() // only now, because markSilent inspects all connections
}

// handleFrames returns nil when the other rank leaves.
func handleFrames(p *Plane, l *link) error {
	from := bufio.NewReader(l.conn)
	for {
		m, err := readFrame(from)
		if err != nil {
			return err
		}

		hasLeft, err := p.handle(l.rank, m)
		if err != nil || hasLeft {
			return err
		}
	}
}

// markSilent marks a rank as lost because its machine does not answer. It first waits until no
// machine is suspected of silence, so that errors list the ranks of all silent machines.
func markSilent(p *Plane, rank int) {
	p.mu.Lock()
	isFirst := len(p.silentRanks) == 0
	p.silentRanks = append(p.silentRanks, rank)
	p.mu.Unlock()
	if !isFirst {
		return // The first rank's goroutine marks this rank, too.
	}

	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	hasQuit := false
	for !hasQuit && hasSuspect(p.links) {
		select {
		case <-ticker.C:
		case <-p.quit:
			hasQuit = true
		}
	}

	p.mu.Lock()
	ranks := p.silentRanks
	p.silentRanks = nil
	p.mu.Unlock()
	for r, l := range p.links {
		if l != nil && sys.SilenceOf(l.conn) == sys.Silent {
			ranks = append(ranks, r)
		}
	}

	p.markLost(ranks...)
}

func hasSuspect(links []*link) bool {
	return slices.ContainsFunc(links, func(l *link) bool {
		return l != nil && sys.SilenceOf(l.conn) == sys.Suspect
	})
}
