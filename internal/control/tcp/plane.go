package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// statusInterval is how old what others know of a rank can be, apart from the time of a
	// message.
	statusInterval = 100 * time.Millisecond
	// ackTimeout bounds how long a rank that has failed waits until the others know. While a group
	// is joined it bounds the wait for the message of a rank that failed before.
	ackTimeout = 250 * time.Millisecond
	// leaveTimeout bounds how long Close waits until its last message is sent.
	leaveTimeout = time.Second
)

// Plane is this rank's end of a group. Its states are those of control.Plane.
type Plane struct {
	cfg     Config
	me      int     // group rank
	links   []*link // by group rank; nil at this rank's own place
	quit    chan struct{}
	tasks   sync.WaitGroup
	running [driver.Lanes]sync.Mutex // one exchange at a time on each lane

	submitted atomic.Uint64
	// final is the least of the last tickets of the peers that have left the group.
	final    atomic.Uint64
	peerGone atomic.Bool   // a peer has failed or is lost, or this plane was closed
	ended    chan struct{} // closed when cause is known

	mu         sync.Mutex
	cause      error                   // why this rank failed; guarded by mu
	closed     bool                    // guarded by mu
	records    []rankRecord            // by group rank; guarded by mu
	waits      []*waiting              // those that others are told of; guarded by mu
	sentStatus status                  // the status that was sent last; guarded by mu
	limit      uint64                  // the last ticket that is sent to others; guarded by mu
	broken     [driver.LaneFault]error // why a lane is out of step; guarded by mu
	changed    chan struct{}           // closed when records change, or nil; guarded by mu
	stalls     stallDetector           // of this process; guarded by mu
	warned     time.Time               // when ranks were last warned of; guarded by mu
}

var _ control.Plane = (*Plane)(nil)

func newPlane(cfg Config, links []*link) *Plane {
	p := &Plane{
		cfg: cfg, me: cfg.Group.Rank, links: links,
		quit: make(chan struct{}), ended: make(chan struct{}),
		records: make([]rankRecord, len(links)),
		limit:   math.MaxUint64, stalls: stallDetector{last: time.Now()},
	}
	p.final.Store(math.MaxUint64)
	p.tasks.Go(p.sendStatuses)
	for _, l := range links {
		if l != nil {
			p.tasks.Go(func() { l.write(p.statusFrame) })
			p.tasks.Go(func() { p.read(l) })
		}
	}
	return p
}

// Submit takes the next ticket. It is sent to the others within statusInterval.
func (p *Plane) Submit() uint64 {
	ticket := p.submitted.Load() + 1
	p.submitted.Store(ticket)
	return ticket
}

// TrySubmit takes the next ticket unless this rank or a peer has failed, one is lost, or one has
// left without that ticket.
func (p *Plane) TrySubmit() (ticket uint64, ok bool) {
	if p.PeerFailed() || p.Cause() != nil || p.submitted.Load() >= p.final.Load() {
		return 0, false
	}
	return p.Submit(), true
}

// PeerFailed reports whether a peer has failed or is lost.
func (p *Plane) PeerFailed() bool { return p.peerGone.Load() }

// Failed is closed when the plane fails.
func (p *Plane) Failed() <-chan struct{} { return p.ended }

// Cause returns the first fault.
func (p *Plane) Cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// Abort fails the plane for all its ranks.
func (p *Plane) Abort(cause error) {
	if cause == nil {
		cause = driver.ErrAborted
	}
	_ = p.Fail(cause)
}

// Fail records the first fault and sends it to the others.
func (p *Plane) Fail(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail(err)
}

// fail is Fail where p.mu is held.
func (p *Plane) fail(err error) error {
	if p.end(err) {
		b := p.status()
		for t, s := range p.records[p.me].tracks {
			p.broadcast(message{kind: kindComplete, track: t, step: s.completed}, false)
		}
		step := uint64(control.ReasonOf(err))
		p.broadcast(message{kind: kindFail, step: step, payload: b.encode(time.Now())}, false)
	}
	return err
}

// end moves the plane out of its open state, once. p.mu is held.
func (p *Plane) end(err error) bool {
	if p.cause != nil {
		return false
	}
	p.cause = err
	close(p.ended)
	p.wakeAll()
	return true
}

// usable returns why the plane can no longer be used, or nil. p.mu is held.
func (p *Plane) usable(lane driver.Lane) error {
	if p.closed {
		return fmt.Errorf("group %s: %w", p.cfg.Group.Name(), driver.ErrClosed)
	}
	if lane == driver.LaneFault {
		return nil
	}
	return p.cause
}

// broadcast sends a message to all others. p.mu is held, so that all get it in the same order.
func (p *Plane) broadcast(m message, last bool) {
	frame := m.encode()
	for _, l := range p.links {
		if l != nil {
			l.send(frame, last)
		}
	}
}

// wakeAll wakes all waits of this rank, which check again. p.mu is held.
func (p *Plane) wakeAll() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// change is closed when the records change. p.mu is held.
func (p *Plane) change() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// read handles what a rank sends until its connection ends.
func (p *Plane) read(l *link) {
	defer close(l.closed)
	var err error
	from := bufio.NewReader(l.conn)
	for left := false; err == nil && !left; {
		var m message
		if m, err = receive(from); err == nil {
			left, err = p.handle(l.rank, m)
		}
	}
	if errors.Is(err, ErrProtocol) {
		_ = p.Fail(fmt.Errorf("reading a message of rank %d: %w", p.cfg.Group.Ranks[l.rank], err))
	}
	_ = l.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.records[l.rank].left {
		p.records[l.rank].lost = true
		p.peerGone.Store(true)
	}
	p.wakeAll()
}

// handle applies a message to the sender's record, and reports whether it was its last.
func (p *Plane) handle(rank int, m message) (left bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.records[rank]
	if err := r.apply(m, time.Now()); err != nil {
		return false, err
	}
	if r.left {
		p.final.Store(min(p.final.Load(), r.submitted))
	}
	if m.kind == kindFail {
		p.peerGone.Store(true)
		answer := message{kind: kindFailAck}
		p.links[rank].send(answer.encode(), false)
	}
	p.wakeAll()
	return r.left, nil
}

// sendStatuses has this rank's status sent when it has changed, and ticks the stall detector.
func (p *Plane) sendStatuses() {
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-ticker.C:
		}
		p.tick(time.Now())
		if !p.statusChanged() {
			continue
		}
		for _, l := range p.links {
			if l != nil {
				l.sendStatus()
			}
		}
	}
}

// tick wakes the waits as soon as the messages of others are read after a stall. Waits that are due
// then end at once: this process may be stopped again.
func (p *Plane) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalls.tick(now) {
		p.wakeAll()
	}
}

// statusChanged reports whether this rank's status has changed since the last call, and must be
// sent.
func (p *Plane) statusChanged() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.status()
	changed := b != p.sentStatus
	p.sentStatus = b
	return changed
}

// status is what this rank is doing. Of several collectives that it waits for it has the last, as
// publishLatest of package shm explains. p.mu is held.
func (p *Plane) status() status {
	b := status{submitted: min(p.submitted.Load(), p.limit)}
	for _, w := range p.waits {
		switch {
		case w.collective > b.inCollective:
			b.inCollective, b.operation, b.since = w.collective, w.operation, w.begin
		case w.exchange && b.inCollective == 0:
			b.inExchange, b.since = w.step, w.begin
		case w.exchange:
			b.inExchange = w.step
		}
	}
	return b
}

// statusFrame is the status as it is sent.
func (p *Plane) statusFrame() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.status()
	m := message{kind: kindStatus, payload: b.encode(time.Now())}
	return m.encode()
}

// publish and unpublish put a wait into this rank's status and take it out. p.mu is held.
func (p *Plane) publish(w *waiting) { p.waits = append(p.waits, w) }

func (p *Plane) unpublish(w *waiting) {
	p.waits = slices.DeleteFunc(p.waits, func(o *waiting) bool { return o == w })
}

// Withdraw takes back the tickets that some rank is not known to have submitted, if there are any.
// The others are told with kindLeave.
func (p *Plane) Withdraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	submitted := p.submitted.Load()
	least := submitted
	for r := range p.records {
		if r != p.me {
			least = min(least, p.records[r].submitted)
		}
	}
	if least == submitted {
		return false
	}
	p.limit = least
	return true
}

// Close sends kindLeave and leaves the group. A rank that does not read it, because it is stopped
// or gone, delays Close by leaveTimeout at most.
func (p *Plane) Close() error {
	if !p.leave() {
		return nil
	}
	close(p.quit)
	for _, l := range p.links {
		if l != nil {
			_ = l.conn.SetDeadline(time.Now().Add(leaveTimeout))
		}
	}
	p.tasks.Wait()
	return nil
}

// leave ends the waits of this rank and queues kindLeave, once.
func (p *Plane) leave() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.end(fmt.Errorf("group %s: %w", p.cfg.Group.Name(), driver.ErrClosed))
	p.closed = true
	p.peerGone.Store(true)
	b := p.status()
	p.broadcast(message{kind: kindLeave, payload: b.encode(time.Now())}, true)
	p.wakeAll()
	return true
}
