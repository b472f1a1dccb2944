package tcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Exchange sends payload to every rank and returns all ranks' payloads.
func (p *Plane) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if err := control.CheckExchange(lane, payload); err != nil {
		return nil, err
	}
	p.exchangeMu[lane].Lock()
	defer p.exchangeMu[lane].Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(lane); err != nil {
		return nil, err
	}
	callText := func() string { return control.ExchangeName(p.cfg.Group, lane) }
	if lane == driver.LaneFault {
		return p.exchangeReports(ctx, payload, &waitState{callText: callText})
	}
	if err := p.laneErrs[lane]; err != nil {
		return nil, fmt.Errorf("%s after a fault: %w", callText(), err)
	}
	if p.peerFailed() {
		return nil, p.failLane(lane, p.peerFault(callText))
	}
	got, err := p.exchangeStep(ctx, payload, &waitState{
		callText: callText, track: laneTracks[lane], exchange: lane == driver.LaneControl,
	})
	if err != nil {
		return nil, p.failLane(lane, err)
	}
	return got, nil
}

// failLane disables a lane after a failed exchange, because the ranks may no longer be in the same
// step. The caller must hold p.mu.
func (p *Plane) failLane(lane driver.Lane, err error) error {
	p.laneErrs[lane] = err
	if lane == driver.LaneControl {
		return failAndNotify(p, err)
	}
	return err
}

// failAndNotify makes the plane fail and waits for acknowledgements. Without this wait, a rank that
// reaches the failed step later could still see the step complete. The caller must hold p.mu, which
// failAndNotify releases while it waits.
func failAndNotify(p *Plane, err error) error {
	err = p.fail(err)
	awaitAcknowledgements(&p.groupState)
	return err
}

// AwaitNotified waits up to ackTimeout for the other ranks to acknowledge this rank's fault.
func (p *Plane) AwaitNotified() {
	p.mu.Lock()
	defer p.mu.Unlock()
	awaitAcknowledgements(&p.groupState)
}

// awaitAcknowledgements implements AwaitNotified. The caller must hold s.mu, which
// awaitAcknowledgements releases while it waits.
func awaitAcknowledgements(s *groupState) {
	for begin := time.Now(); !s.closed && awaitsAcknowledgement(s); {
		left := ackTimeout - time.Since(begin)
		if left <= 0 {
			break
		}
		s.pause(nil, left)
	}
}

// CanSucceed implements control.Notifier. Submissions that a lost rank has not sent are unknown.
func (p *Plane) CanSucceed(ticket uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for end := time.Now().Add(catchUpLimit); !p.closed && !p.PeerFailed(); {
		now := time.Now()
		if !p.stalls.mayBeStale(now) || now.After(end) {
			break
		}
		p.pause(nil, statusInterval)
	}
	for rank := range p.records {
		r := &p.records[rank]
		if rank != p.me && (r.failed != control.NotFailed || r.lost && r.submitted < ticket) {
			return false
		}
	}
	return true
}

// exchangeStep performs one step of a track: it posts this rank's payload, and returns the payloads
// of all ranks. The caller must hold p.mu.
func (p *Plane) exchangeStep(ctx context.Context, payload []byte, w *waitState) ([][]byte, error) {
	own, err := p.records[p.me].stepsOn(w.track)
	if err != nil {
		return nil, err
	}
	own.received++
	w.step, w.ordered = own.received, own.ordered
	m := message{kind: kindPost, track: w.track, step: w.step, payload: payload}
	p.broadcast(m, false)
	if err := p.wait(ctx, w); err != nil {
		return nil, err
	}
	own.completed = w.step
	got := make([][]byte, len(p.records))
	for r := range p.records {
		if r == p.me {
			got[r] = append([]byte{}, payload...)
			continue
		}
		got[r] = p.records[r].tracks[w.track].pop()
	}
	return got, nil
}

// Named returns the values that the ranks exchange under a name.
func (p *Plane) Named(name string, ordered bool) (driver.Named, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.checkUsable(driver.LaneControl)
	}
	own, err := p.records[p.me].stepsOn(valuePrefix + track(name))
	if err != nil {
		return nil, err
	}
	own.ordered = own.ordered || ordered
	return namedValue{p, name}, nil
}

// Collectives returns the number of tickets allocated so far.
func (p *Plane) Collectives() uint64 { return p.submitted.Load() }

// Compare implements control.Plane.
func (p *Plane) Compare(ticket uint64, call *driver.Call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(driver.LaneControl); err != nil {
		return err
	}
	peerHadFailed := p.peerFailed()
	w := &waitState{
		track: trackCompare, collective: ticket, operation: call.Operation,
		callText: func() string {
			return fmt.Sprintf("%v %d of group %s", call.Operation, ticket, p.cfg.Group.Name())
		},
	}
	mine := encodeWords(call.Digest)
	all, err := p.exchangeStep(context.Background(), mine, w)
	if err != nil {
		return failAndNotify(p, err)
	}
	var others []int
	for r, digest := range all {
		if string(digest) != string(mine) {
			others = append(others, r)
		}
	}
	switch {
	case len(others) > 0:
		return p.fail(p.cfg.Group.Mismatch(ticket, call, others...))
	case peerHadFailed:
		return p.fail(p.peerFault(w.callText))
	}
	return nil
}

// exchangeReports appends this rank's payload to its log and reads every other rank's next report.
// The caller must hold p.mu.
func (p *Plane) exchangeReports(
	ctx context.Context, payload []byte, w *waitState,
) ([][]byte, error) {
	_ = p.fail(&driver.PeerError{InCall: w.callText()})
	own := &p.records[p.me]
	payload = append([]byte{}, payload...)
	if err := own.addReport(payload); err != nil {
		return nil, err
	}
	p.broadcast(message{kind: kindReport, payload: payload}, false)
	if err := p.awaitReports(ctx, w); err != nil {
		return nil, err
	}
	got := make([][]byte, len(p.records))
	for r := range p.records {
		if !p.records[r].absent {
			got[r], _ = p.records[r].nextReport()
		}
	}
	return got, nil
}

// awaitReports waits for the next report from every rank. A rank that does not report in time, is
// lost or has left becomes absent.
func (p *Plane) awaitReports(ctx context.Context, w *waitState) error {
	ctx, cancel := control.WithDefaultTimeout(ctx, p.cfg.Group.Timeout.Get())
	defer cancel()
	for {
		expected := p.ranksYetToReport()
		if len(expected) == 0 {
			return nil
		}
		due := errors.Is(ctx.Err(), context.DeadlineExceeded)
		switch {
		case p.closed:
			return p.checkUsable(driver.LaneFault)
		case due && p.stalls.mayBeStale(time.Now()):
			p.pause(nil, statusInterval)
			continue
		case due:
			for _, r := range expected {
				p.records[r].absent = true
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", w.callText(), context.Cause(ctx))
		}
		p.pause(ctx.Done())
	}
}
