package tcp

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	statusInterval = 100 * time.Millisecond
	// ackTimeout bounds waits for acknowledgements of a fault, and for the error of a rank that
	// failed first during Join.
	ackTimeout   = 250 * time.Millisecond
	leaveTimeout = time.Second
	// statusTimeout bounds the wait of Withdraw for ranks whose processes are stopped.
	statusTimeout = 3 * time.Second
)

// Plane connects ranks over TCP.
type Plane struct {
	groupState
	links      []*link // by group rank; nil for this rank
	quit       chan struct{}
	tasks      sync.WaitGroup
	exchangeMu [driver.Lanes]sync.Mutex // for each lane: serializes exchanges

	// lastTicket is the last ticket (number of a collective) that all peers that have left had
	// submitted.
	lastTicket atomic.Uint64

	silentRanks []int // to be marked as lost by markSilent; guarded by mu

	sentStatus     status                  // guarded by mu
	statusRequests uint64                  // guarded by mu
	laneErrs       [driver.LaneFault]error // errors of failed exchanges; guarded by mu
}

var _ control.Plane = (*Plane)(nil)

func newPlane(cfg Config, links []*link) *Plane {
	p := &Plane{
		groupState: groupState{
			cfg: cfg, ownRank: cfg.Group.Rank, failSignal: make(chan struct{}),
			records:   make([]rankRecord, len(links)),
			maxTicket: math.MaxUint64, stallDetector: stallDetector{last: time.Now()},
		},
		links: links, quit: make(chan struct{}),
	}
	p.lastTicket.Store(math.MaxUint64)
	p.tasks.Go(p.sendStatuses)
	for _, l := range links {
		if l != nil {
			p.tasks.Go(func() { l.writeFrames(p.statusFrame) })
			p.tasks.Go(func() { readFrames(p, l) })
		}
	}

	return p
}

// Submit implements control.Plane.
func (p *Plane) Submit() uint64 {
	ticket := p.submitted.Load() + 1
	p.submitted.Store(ticket)
	return ticket
}

// TrySubmit implements control.Plane.
func (p *Plane) TrySubmit() (ticket uint64, ok bool) {
	if p.PeerFailed() || p.Cause() != nil || p.submitted.Load() >= p.lastTicket.Load() {
		return 0, false
	}

	return p.Submit(), true
}

// PeerFailed implements control.Plane.
func (p *Plane) PeerFailed() bool { return p.peerFailedOrClosed.Load() }

// Failed implements control.Plane.
func (p *Plane) Failed() <-chan struct{} { return p.failSignal }

// Abort implements control.Plane.
func (p *Plane) Abort(cause error) {
	if cause == nil {
		cause = driver.ErrAborted
	}

	_ = p.Fail(cause)
}

// Fail records the first fault, sends it to the other ranks, and returns err as a fault.
func (p *Plane) Fail(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fail(err)
}

// The caller must hold p.mu.
func (p *Plane) fail(err error) error {
	err = p.cfg.Group.Fault(err)
	if p.recordFault(err) {
		currentStatus := p.ownStatus()
		for t, s := range p.records[p.ownRank].tracks {
			p.broadcast(message{kind: kindComplete, track: t, step: s.completed})
		}

		step := uint64(control.ReasonOf(err))
		p.broadcast(message{kind: kindFail, step: step, payload: currentStatus.encode(time.Now())})
	}

	return err
}

// broadcast requires p.mu, so that all ranks receive this rank's messages in the same order.
func (p *Plane) broadcast(m message) {
	frame := m.encode()
	for _, l := range p.links {
		if l != nil {
			l.send(frame)
		}
	}
}

func (p *Plane) handle(rank int, m message) (hasLeft bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.records[rank]
	if err := r.applyMessage(m, time.Now()); err != nil {
		return false, err
	}

	if r.hasLeft {
		p.lastTicket.Store(min(p.lastTicket.Load(), r.submitted))
	}

	if m.kind == kindFail {
		p.peerFailedOrClosed.Store(true)
		answer := message{kind: kindFailAck}
		p.links[rank].send(answer.encode())
	}

	if m.kind == kindAskStatus {
		p.links[rank].answer(m.step)
	}

	p.wakeWaitsFor(rank, m)
	return r.hasLeft, nil
}

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
		if !p.updateSentStatus() {
			continue
		}

		for _, l := range p.links {
			if l != nil {
				l.sendStatus()
			}
		}
	}
}

func (p *Plane) updateSentStatus() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	currentStatus := p.ownStatus()
	changed := currentStatus != p.sentStatus
	p.sentStatus = currentStatus
	return changed
}

// statusFrame returns a frame with this rank's status, which answers a request unless it is 0.
func (p *Plane) statusFrame(request uint64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	currentStatus := p.ownStatus()
	m := message{kind: kindStatus, step: request, payload: currentStatus.encode(time.Now())}
	return m.encode()
}

// Withdraw implements control.Plane.
func (p *Plane) Withdraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	updateStatuses(p)
	submitted := p.submitted.Load()
	least, _ := leastSubmitted(p, submitted)
	if least == submitted {
		return false
	}

	p.maxTicket = least
	return true
}

// updateStatuses asks the other ranks for their statuses, because those that it has may be older
// than statusInterval. It waits up to statusTimeout for answers that can change leastSubmitted. The
// caller must hold p.mu, which is released during the wait.
func updateStatuses(p *Plane) {
	p.statusRequests++ // answers to earlier requests do not count
	isFinal := func() bool {
		_, final := leastSubmitted(p, p.submitted.Load())
		return final
	}
	if isFinal() {
		return
	}

	p.broadcast(message{kind: kindAskStatus, step: p.statusRequests})
	end := time.Now().Add(statusTimeout)
	for !p.closed && !isFinal() && time.Now().Before(end) {
		p.awaitChange(nil, time.Until(end))
	}
}

// leastSubmitted returns how many tickets each rank is known to have submitted, if this rank has
// submitted the given number. The result is final if no status can increase it: one of the ranks
// that have submitted no more is this rank, has departed, or has answered the last kindAskStatus.
func leastSubmitted(p *Plane, submitted uint64) (least uint64, isFinal bool) {
	least, isFinal = submitted, true
	for rank := range p.records {
		r := &p.records[rank]
		if rank == p.ownRank || r.submitted > least {
			continue
		}

		isCurrent := r.hasLeft || r.isLost || r.answered >= p.statusRequests
		isFinal = isCurrent || isFinal && r.submitted == least
		least = r.submitted
	}

	return least, isFinal
}

// Close leaves the group. A peer that does not read delays it by at most leaveTimeout.
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

// leave ends this rank's waits. It returns false on a closed plane.
func (p *Plane) leave() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}

	p.recordFault(p.cfg.Group.Fault(fmt.Errorf("group %s: %w", p.cfg.Group.Name(), driver.ErrClosed)))
	p.closed = true
	p.peerFailedOrClosed.Store(true)
	currentStatus := p.ownStatus()
	last := message{kind: kindLeave, payload: currentStatus.encode(time.Now())}
	frame := last.encode()
	for _, l := range p.links {
		if l != nil {
			l.sendLast(frame)
		}
	}

	p.wakeAll()
	return true
}
