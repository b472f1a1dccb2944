package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Exchange sends payload to every rank and returns everybody's.
func (p *Plane) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if err := control.CheckExchange(lane, payload); err != nil {
		return nil, err
	}
	p.running[lane].Lock()
	defer p.running[lane].Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(lane); err != nil {
		return nil, err
	}
	doing := func() string { return control.Exchanging(p.cfg.Group, lane) }
	if lane == driver.LaneFault {
		return p.report(ctx, payload, &waiting{doing: doing})
	}
	if err := p.broken[lane]; err != nil {
		return nil, fmt.Errorf("%s after a fault: %w", doing(), err)
	}
	if p.peerFailed() {
		return nil, p.breakLane(lane, p.peerFault(doing))
	}
	got, err := p.swap(ctx, payload, &waiting{
		doing: doing, track: track(lane), exchange: lane == driver.LaneControl,
	})
	if err != nil {
		return nil, p.breakLane(lane, err)
	}
	return got, nil
}

// breakLane ends the use of a lane that is out of step. p.mu is held.
func (p *Plane) breakLane(lane driver.Lane, err error) error {
	p.broken[lane] = err
	if lane == driver.LaneControl {
		return p.concede(err)
	}
	return err
}

// concede fails the plane and waits until the others have heard of it: a rank that comes to the
// step after this one has given up must not find it complete. p.mu is held, and given up meanwhile.
func (p *Plane) concede(err error) error {
	_ = p.fail(err)
	for begin := time.Now(); !p.closed && p.unheard(); {
		left := hearing - time.Since(begin)
		if left <= 0 {
			break
		}
		p.pause(nil, left)
	}
	return err
}

// unheard reports whether somebody who goes on does not know of this rank's fault.
func (p *Plane) unheard() bool {
	for r := range p.rows {
		row := &p.rows[r]
		if r != p.me && !row.heard && row.failed == control.NotFailed && !row.left && !row.lost {
			return true
		}
	}
	return false
}

// swap makes one step of a track: it posts this rank's payload, waits for everybody's and takes
// them. p.mu is held.
func (p *Plane) swap(ctx context.Context, payload []byte, w *waiting) ([][]byte, error) {
	own := &p.rows[p.me]
	w.step = own.came[w.track] + 1
	m := message{kind: kindPost, track: w.track, step: w.step, payload: payload}
	own.came[w.track] = w.step
	p.broadcast(m, false)
	if err := p.wait(ctx, w); err != nil {
		return nil, err
	}
	own.completed[w.track] = w.step
	got := make([][]byte, len(p.rows))
	for r := range p.rows {
		if r == p.me {
			got[r] = append([]byte{}, payload...)
			continue
		}
		got[r] = p.rows[r].take(w.track)
	}
	return got, nil
}

// Named returns this rank's end of a name.
func (p *Plane) Named(name string, ordered bool) (driver.Named, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.open(driver.LaneControl)
	}
	v, err := p.rows[p.me].under(name)
	if err != nil {
		return nil, err
	}
	v.ordered = v.ordered || ordered
	return named{p, name}, nil
}

// Collectives is how many tickets were handed out.
func (p *Plane) Collectives() uint64 { return p.submitted.Load() }

// Compare compares the digests of a call.
func (p *Plane) Compare(ticket uint64, call *driver.Call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(driver.LaneControl); err != nil {
		return err
	}
	late := p.peerFailed()
	w := &waiting{
		track: trackCompare, collective: ticket, operation: call.Operation,
		doing: func() string {
			return fmt.Sprintf("%v %d of group %s", call.Operation, ticket, p.cfg.Group.Name())
		},
	}
	all, err := p.swap(context.Background(), binary.LittleEndian.AppendUint64(nil, call.Digest), w)
	if err != nil {
		return p.concede(err)
	}
	var others []int
	for r, digest := range all {
		if binary.LittleEndian.Uint64(digest) != call.Digest {
			others = append(others, r)
		}
	}
	switch {
	case len(others) > 0:
		return p.fail(p.cfg.Group.Mismatch(ticket, call, others...))
	case late:
		return p.fail(p.peerFault(w.doing))
	}
	return nil
}

// report writes this rank's payload to its log and reads the next report of everybody else.
// p.mu is held.
func (p *Plane) report(ctx context.Context, payload []byte, w *waiting) ([][]byte, error) {
	_ = p.fail(&driver.PeerError{Doing: w.doing()})
	own := &p.rows[p.me]
	payload = append([]byte{}, payload...)
	if err := own.report(payload); err != nil {
		return nil, err
	}
	p.broadcast(message{kind: kindReport, payload: payload}, false)
	if err := p.meet(ctx, w); err != nil {
		return nil, err
	}
	got := make([][]byte, len(p.rows))
	for r := range p.rows {
		if !p.rows[r].absent {
			got[r], _ = p.rows[r].next()
		}
	}
	return got, nil
}

// meet waits for the next report of all ranks that are not absent. A rank that does not come in
// time, is lost or has left the group becomes absent.
func (p *Plane) meet(ctx context.Context, w *waiting) error {
	ctx, cancel := control.Bounded(ctx, p.cfg.Timeout)
	defer cancel()
	for {
		silent := p.silent()
		if len(silent) == 0 {
			return nil
		}
		due := errors.Is(ctx.Err(), context.DeadlineExceeded)
		switch {
		case p.closed:
			return p.open(driver.LaneFault)
		case due && p.rhythm.deaf(time.Now()):
			p.pause(nil, tellInterval)
			continue
		case due:
			for _, r := range silent {
				p.rows[r].absent = true
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", w.doing(), context.Cause(ctx))
		}
		p.pause(ctx.Done())
	}
}

// silent lists those who have a report to make, and takes those who can make none as absent.
func (p *Plane) silent() []int {
	var ranks []int
	for r := range p.rows {
		row := &p.rows[r]
		if r == p.me || row.absent || row.read < len(row.reports) {
			continue
		}
		if row.lost || row.left || !row.hasRoom(0) {
			row.absent = true
			continue
		}
		ranks = append(ranks, r)
	}
	return ranks
}
