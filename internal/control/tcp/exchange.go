package tcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// notLast is an argument of broadcast: other messages will follow.
const notLast = false

// Exchange implements control.Plane.
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
		return nil, p.disableLane(lane, p.peerFault(callText))
	}
	got, err := p.exchangeStep(ctx, payload, &waitState{
		callText: callText, track: laneTracks[lane], isAgreement: lane == driver.LaneControl,
	})
	if err != nil {
		return nil, p.disableLane(lane, err)
	}
	return got, nil
}

// disableLane ends the use of a lane (an independent sequence of exchanges), because ranks may be
// in different steps of it. The caller must hold p.mu.
func (p *Plane) disableLane(lane driver.Lane, err error) error {
	p.laneErrs[lane] = err
	if lane == driver.LaneControl {
		return failAndNotify(p, err)
	}
	return err
}

// failAndNotify makes the plane fail and waits until the other ranks have acknowledged the fault.
// Without the wait, a rank that reaches the failed step later could complete it. The caller must
// hold p.mu, which is released during the wait.
func failAndNotify(p *Plane, err error) error {
	err = p.fail(err)
	awaitAcknowledgements(&p.groupState)
	return err
}

// WaitForAcknowledgements waits up to ackTimeout for the other ranks to acknowledge this rank's
// fault.
func (p *Plane) WaitForAcknowledgements() {
	p.mu.Lock()
	defer p.mu.Unlock()
	awaitAcknowledgements(&p.groupState)
}

// awaitAcknowledgements implements WaitForAcknowledgements. The caller must hold s.mu, which is
// released during the wait.
func awaitAcknowledgements(s *groupState) {
	for begin := time.Now(); !s.closed && hasUnacknowledgedFault(s); {
		remaining := ackTimeout - time.Since(begin)
		if remaining <= 0 {
			break
		}
		s.awaitChange(nil, remaining)
	}
}

// CanSucceed reports whether work that depends on a ticket may still complete: no other rank has
// failed, or is lost without having submitted the ticket. It is pessimistic, because a lost rank
// may have submitted more tickets than this rank knows of. If messages may be unread, it first
// waits for them.
func (p *Plane) CanSucceed(ticket uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := time.Now().Add(catchUpLimit)
	for !p.closed && !p.PeerFailed() {
		now := time.Now()
		if !p.stallDetector.mayBeStale(now) || now.After(end) {
			break
		}
		p.awaitChange(nil, statusInterval)
	}
	for rank := range p.records {
		r := &p.records[rank]
		lacksTicket := r.isLost && r.submitted < ticket
		if rank != p.ownRank && (r.failed != control.NotFailed || lacksTicket) {
			return false
		}
	}
	return true
}

// exchangeStep performs the next step of w.track, and returns the payloads of all ranks by group
// rank. It sets the other fields of w that describe the step. The caller must hold p.mu, which is
// released during the wait.
func (p *Plane) exchangeStep(ctx context.Context, payload []byte, w *waitState) ([][]byte, error) {
	ownSteps, err := p.records[p.ownRank].addSteps(w.track)
	if err != nil {
		return nil, err
	}
	ownSteps.received++
	w.step, w.isOrdered = ownSteps.received, ownSteps.isOrdered
	m := message{kind: kindPost, track: w.track, step: w.step, payload: payload}
	p.broadcast(m, notLast)
	if err := p.wait(ctx, w); err != nil {
		return nil, err
	}
	ownSteps.completed = w.step
	payloads := make([][]byte, len(p.records))
	for r := range p.records {
		if r == p.ownRank {
			payloads[r] = append([]byte{}, payload...)
			continue
		}
		payloads[r] = p.records[r].tracks[w.track].takePost()
	}
	return payloads, nil
}

// Named implements control.Plane.
func (p *Plane) Named(name string, isOrdered bool) (driver.Named, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.checkUsable(driver.LaneControl)
	}
	ownSteps, err := p.records[p.ownRank].addSteps(valuePrefix + track(name))
	if err != nil {
		return nil, err
	}
	ownSteps.isOrdered = ownSteps.isOrdered || isOrdered
	return namedValue{p, name}, nil
}

// Collectives implements control.Plane.
func (p *Plane) Collectives() uint64 { return p.submitted.Load() }

// Compare implements control.Plane.
func (p *Plane) Compare(ticket uint64, call *driver.Call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(driver.LaneControl); err != nil {
		return err
	}
	hadPeerFailed := p.peerFailed()
	w := &waitState{
		track: trackCompare, collective: ticket, operation: call.Operation,
		callText: func() string {
			return fmt.Sprintf("%v %d of group %s", call.Operation, ticket, p.cfg.Group.Name())
		},
	}
	ownDigest := encodeWords(call.Digest)
	digests, err := p.exchangeStep(context.Background(), ownDigest, w)
	if err != nil {
		return failAndNotify(p, err)
	}
	var differingRanks []int
	for r, digest := range digests {
		if string(digest) != string(ownDigest) {
			differingRanks = append(differingRanks, r)
		}
	}
	switch {
	case len(differingRanks) > 0:
		return p.fail(p.cfg.Group.Mismatch(ticket, call, differingRanks...))
	case hadPeerFailed:
		return p.fail(p.peerFault(w.callText))
	}
	return nil
}

// exchangeReports sends a fault report to all ranks. It returns the next report of every rank, or
// nil for an absent rank. The caller must hold p.mu, which is released during waits.
func (p *Plane) exchangeReports(
	ctx context.Context, payload []byte, w *waitState,
) ([][]byte, error) {
	// Ranks report faults only after a failure, so this rank fails if it has not yet.
	_ = p.fail(&driver.PeerError{InCall: w.callText()})
	ownRecord := &p.records[p.ownRank]
	payload = append([]byte{}, payload...)
	if err := ownRecord.addReport(payload); err != nil {
		return nil, err
	}
	p.broadcast(message{kind: kindReport, payload: payload}, notLast)
	if err := p.awaitReports(ctx, w); err != nil {
		return nil, err
	}
	reports := make([][]byte, len(p.records))
	for r := range p.records {
		if !p.records[r].isAbsent {
			reports[r], _ = p.records[r].nextReport()
		}
	}
	return reports, nil
}

// awaitReports waits for the next report of every rank. It marks ranks as absent that do not
// report in time, are lost or have left. The caller must hold p.mu, which is released during
// waits.
func (p *Plane) awaitReports(ctx context.Context, w *waitState) error {
	ctx, cancel := control.WithDefaultTimeout(ctx, p.cfg.Group.Timeout.Get())
	defer cancel()
	for {
		pendingRanks := p.ranksYetToReport()
		if len(pendingRanks) == 0 {
			return nil
		}
		hasTimedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
		switch {
		case p.closed:
			return p.checkUsable(driver.LaneFault)
		case hasTimedOut && p.stallDetector.mayBeStale(time.Now()):
			p.awaitChange(nil, statusInterval)
			continue
		case hasTimedOut:
			for _, r := range pendingRanks {
				p.records[r].isAbsent = true
			}
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", w.callText(), context.Cause(ctx))
		}
		p.awaitChange(ctx.Done())
	}
}
