package tcp

import (
	"encoding/binary"
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
	// tellInterval is how old what others know of a rank can be, apart from the way of a message.
	tellInterval = 100 * time.Millisecond
	// hearing bounds how long a rank that has failed waits for others to hear of it, or, in
	// joining, for the word of one that has failed before.
	hearing = 250 * time.Millisecond
	// farewell bounds how long Close waits for goodbyes to be taken.
	farewell = time.Second
)

// Plane is this rank's end of a group. Its states are those of control.Plane.
type Plane struct {
	cfg     Config
	me      int     // group rank
	all     []int   // the group ranks
	links   []*link // by group rank; nil at this rank's own place
	quit    chan struct{}
	tasks   sync.WaitGroup
	running [driver.Lanes]sync.Mutex // one exchange at a time on each lane

	submitted atomic.Uint64
	// final is the least of the last tickets of the peers that have left the group.
	final    atomic.Uint64
	peerGone atomic.Bool   // a peer has failed or is lost, or this plane was closed
	ended    chan struct{} // closed when cause is known

	mu      sync.Mutex
	cause   error                   // why this rank failed; guarded by mu
	closed  bool                    // guarded by mu
	rows    []row                   // by group rank; guarded by mu
	waits   []*waiting              // those that others should know of; guarded by mu
	told    board                   // what others know; guarded by mu
	limit   uint64                  // the last ticket that others are shown; guarded by mu
	broken  [driver.LaneFault]error // why a lane is out of step; guarded by mu
	changed chan struct{}           // closed when rows change; nil if nobody waits; guarded by mu
	rhythm  rhythm                  // of tell; guarded by mu
	warned  time.Time               // when ranks were last warned of; guarded by mu
}

var _ control.Plane = (*Plane)(nil)

func newPlane(cfg Config, links []*link) *Plane {
	p := &Plane{
		cfg: cfg, me: cfg.Group.Rank, links: links,
		quit: make(chan struct{}), ended: make(chan struct{}), rows: make([]row, len(links)),
		limit: math.MaxUint64, rhythm: rhythm{last: time.Now()},
	}
	p.final.Store(math.MaxUint64)
	for r := range links {
		p.all = append(p.all, r)
	}
	p.tasks.Go(p.tell)
	for _, l := range links {
		if l != nil {
			p.tasks.Go(func() { l.write(p.boardFrame) })
			p.tasks.Go(func() { p.read(l) })
		}
	}
	return p
}

// Submit takes the next ticket. It is told to the others within tellInterval.
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

// Fail records the first fault and tells the others.
func (p *Plane) Fail(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail(err)
}

// fail is Fail where p.mu is held.
func (p *Plane) fail(err error) error {
	if p.end(err) {
		b := p.board()
		payload := b.encode(time.Now())
		for _, step := range p.rows[p.me].completed {
			payload = binary.LittleEndian.AppendUint64(payload, step)
		}
		for name, v := range p.rows[p.me].values {
			p.broadcast(message{kind: kindComplete, step: v.completed, payload: []byte(name)}, false)
		}
		step := uint64(control.ReasonOf(err))
		p.broadcast(message{kind: kindFail, step: step, payload: payload}, false)
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

// open says why the plane can no longer be used, or nil. p.mu is held.
func (p *Plane) open(lane driver.Lane) error {
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

// wakeAll has everybody who waits look again. p.mu is held.
func (p *Plane) wakeAll() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// change is closed when the rows change. p.mu is held.
func (p *Plane) change() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// read takes what a rank sends until its connection ends.
func (p *Plane) read(l *link) {
	defer close(l.closed)
	var err error
	for left := false; err == nil && !left; {
		var m message
		if m, err = receive(l.conn); err == nil {
			left, err = p.take(l.rank, m)
		}
	}
	if errors.Is(err, ErrProtocol) {
		_ = p.Fail(fmt.Errorf("reading what rank %d says: %w", p.cfg.Group.Ranks[l.rank], err))
	}
	_ = l.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rows[l.rank].left {
		p.rows[l.rank].lost = true
		p.peerGone.Store(true)
	}
	p.wakeAll()
}

// take enters a message in the sender's row, and reports whether it was its last.
func (p *Plane) take(rank int, m message) (left bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.rows[rank]
	if err := r.apply(m, time.Now()); err != nil {
		return false, err
	}
	if r.left {
		p.final.Store(min(p.final.Load(), r.submitted))
	}
	if m.kind == kindFail {
		p.peerGone.Store(true)
		answer := message{kind: kindHeard}
		p.links[rank].send(answer.encode(), false)
	}
	p.wakeAll()
	return r.left, nil
}

// tell has boards sent when this rank's has changed, and beats the rhythm.
func (p *Plane) tell() {
	ticker := time.NewTicker(tellInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-ticker.C:
		}
		p.tick(time.Now())
		if !p.stale() {
			continue
		}
		for _, l := range p.links {
			if l != nil {
				l.tell()
			}
		}
	}
}

// tick has waits that are due look at once when what others have said is read: this process may be
// stopped again.
func (p *Plane) tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rhythm.tick(now) {
		p.wakeAll()
	}
}

// stale reports whether others do not know this rank's board, and takes them as told.
func (p *Plane) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.board()
	changed := b != p.told
	p.told = b
	return changed
}

// board is what this rank is doing. Of several collectives that it waits for it shows the last,
// which proves the most to others. p.mu is held.
func (p *Plane) board() board {
	b := board{submitted: min(p.submitted.Load(), p.limit)}
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

// boardFrame is the board as it is sent.
func (p *Plane) boardFrame() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.board()
	m := message{kind: kindBoard, payload: b.encode(time.Now())}
	return m.encode()
}

// show and conceal begin and end that others know of a wait.
func (p *Plane) show(w *waiting) { p.waits = append(p.waits, w) }

func (p *Plane) conceal(w *waiting) {
	p.waits = slices.DeleteFunc(p.waits, func(o *waiting) bool { return o == w })
}

// Withdraw takes back the tickets that some rank is not known to have submitted, if there are any.
// The others hear of it with the goodbye.
func (p *Plane) Withdraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	submitted := p.submitted.Load()
	least := submitted
	for r := range p.rows {
		if r != p.me {
			least = min(least, p.rows[r].submitted)
		}
	}
	if least == submitted {
		return false
	}
	p.limit = least
	return true
}

// Close says goodbye and leaves the group. A rank that takes no goodbye, because it is stopped or
// gone, holds it up for a second at most.
func (p *Plane) Close() error {
	if !p.leave() {
		return nil
	}
	close(p.quit)
	for _, l := range p.links {
		if l != nil {
			_ = l.conn.SetDeadline(time.Now().Add(farewell))
		}
	}
	p.tasks.Wait()
	return nil
}

// leave ends the waits of this rank and says goodbye, once.
func (p *Plane) leave() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.end(fmt.Errorf("group %s: %w", p.cfg.Group.Name(), driver.ErrClosed))
	p.closed = true
	p.peerGone.Store(true)
	b := p.board()
	p.broadcast(message{kind: kindBye, payload: b.encode(time.Now())}, true)
	p.wakeAll()
	return true
}
