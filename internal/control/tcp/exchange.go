package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Exchange implements control.Plane.
func (p *Plane) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if err := control.CheckExchange(lane, payload); err != nil {
		return nil, err
	}

	// A lane is an independent sequence of exchanges. Each lane has one exchange at a time.
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

	if p.peerAnnouncedFailure() {
		err := p.disableLane(lane, p.newPeerError(callText))
		return nil, err
	}

	payloads, err := p.exchangeStep(ctx, payload, &waitState{
		callText:    callText,
		track:       laneTracks[lane],
		isAgreement: lane == driver.LaneControl,
	})
	if err != nil {
		err = p.disableLane(lane, err)
		return nil, err
	}

	return payloads, nil
}

// disableLane makes later exchanges on a lane fail, because ranks may be in different steps of the
// lane. If the lane is driver.LaneControl, the whole plane fails with err. disableLane returns err,
// as a fault if the plane fails. The caller must hold p.mu, which may be released for a while.
func (p *Plane) disableLane(lane driver.Lane, err error) error {
	p.laneErrs[lane] = err
	if lane == driver.LaneControl {
		return failAndNotify(p, err)
	}

	return err
}

// failAndNotify makes the plane fail and waits until the other ranks have acknowledged the fault.
// It returns err as a fault. Without the wait, a rank that reaches the failed step later could
// complete the step. The caller must hold p.mu, which is released during the wait.
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
	begin := time.Now()
	for !s.closed && hasUnacknowledgedFault(s) {
		remaining := ackTimeout - time.Since(begin)
		if remaining <= 0 {
			break
		}

		s.awaitChange(nil, remaining)
	}
}

// CanSucceed reports whether work that depends on a ticket (number of a collective) may still
// complete. This is not the case if another rank has failed, or is lost and is not known to have
// submitted the ticket. The result can be false although the work completes, because a lost rank
// may have submitted more tickets than this rank knows of.
//
// If messages of other ranks may be unread, CanSucceed first waits until they have been read, for
// up to catchUpLimit.
func (p *Plane) CanSucceed(ticket uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := time.Now().Add(catchUpLimit)
	for !p.closed && !p.PeerFailed() {
		now := time.Now()
		areMessagesRead := !p.stallDetector.mayBeStale(now)
		if areMessagesRead || now.After(end) {
			break
		}

		p.awaitChange(nil, statusInterval)
	}

	for rank := range p.records {
		if rank == p.ownRank {
			continue
		}

		r := &p.records[rank]
		hasFailed := r.failed != control.NotFailed
		isLostWithoutTicket := r.isLost && r.submitted < ticket
		if hasFailed || isLostWithoutTicket {
			return false
		}
	}

	return true
}

// exchangeStep performs the next step of w.track, a sequence of exchanges. It returns the payloads
// of all ranks, by group rank. The caller sets w.track and the fields that describe the call.
// exchangeStep sets the other fields of w. The caller must hold p.mu, which is released during the
// wait.
func (p *Plane) exchangeStep(ctx context.Context, payload []byte, w *waitState) ([][]byte, error) {
	ownSteps, err := p.records[p.ownRank].ensureSteps(w.track)
	if err != nil {
		return nil, err
	}

	ownSteps.posted++ // this rank's own payload
	w.step = ownSteps.posted
	w.isOrdered = ownSteps.isOrdered
	post := message{kind: kindPost, track: w.track, step: w.step, payload: payload}
	p.broadcast(post)
	if err := p.wait(ctx, w); err != nil {
		return nil, err
	}

	ownSteps.completed = w.step
	payloads := make([][]byte, len(p.records))
	for r := range p.records {
		if r == p.ownRank {
			payloads[r] = append([]byte{}, payload...) // a copy, because the caller owns payload
			continue
		}

		// The post exists, because wait has returned without an error.
		payloads[r] = p.records[r].tracks[w.track].takePost()
	}

	return payloads, nil
}

// Named implements control.Plane.
func (p *Plane) Named(name string, isOrdered bool) (driver.Named, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed { // after a fault, Gather returns the error
		return nil, p.checkUsable(driver.LaneControl)
	}

	ownSteps, err := p.records[p.ownRank].ensureSteps(valuePrefix + track(name))
	if err != nil {
		return nil, err
	}

	if isOrdered {
		ownSteps.isOrdered = true
	}

	return namedValue{p: p, name: name}, nil
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

	hadFailedPeer := p.peerAnnouncedFailure() // the wait itself notices later failures
	w := &waitState{
		callText: func() string {
			return fmt.Sprintf("%v %d of group %s", call.Operation, ticket, p.cfg.Group.Name())
		},
		track:      trackCompare,
		collective: ticket,
		operation:  call.Operation,
	}
	ownDigest := encodeWords(call.Digest)
	digests, err := p.exchangeStep(context.Background(), ownDigest, w)
	if err != nil {
		return failAndNotify(p, err)
	}

	var differingRanks []int
	for r, digest := range digests {
		if !bytes.Equal(digest, ownDigest) {
			differingRanks = append(differingRanks, r)
		}
	}

	if len(differingRanks) > 0 {
		mismatch := p.cfg.Group.Mismatch(ticket, call, differingRanks...)
		return p.fail(mismatch)
	}

	// The digests of a peer can arrive even if it has failed, but the collective cannot complete.
	if hadFailedPeer {
		return p.fail(p.newPeerError(w.callText))
	}

	return nil
}

// exchangeReports sends a fault report to all ranks. It returns the next report of every rank, by
// group rank. The entry of a rank without a report is nil. The caller must hold p.mu, which is
// released during waits.
func (p *Plane) exchangeReports(
	ctx context.Context, payload []byte, w *waitState,
) ([][]byte, error) {
	// Ranks report faults only after a failure. If this rank knows of none, another rank has
	// failed.
	_ = p.fail(&driver.PeerError{InCall: w.callText()}) // does nothing if this rank has failed
	ownRecord := &p.records[p.ownRank]
	payload = append([]byte{}, payload...) // a copy, because the record keeps it
	if err := ownRecord.addReport(payload); err != nil {
		return nil, err
	}

	p.broadcast(message{kind: kindReport, payload: payload})
	if err := p.awaitReports(ctx, w); err != nil {
		return nil, err
	}

	reports := make([][]byte, len(p.records))
	for r := range p.records {
		if !p.records[r].isAbsent {
			reports[r], _ = p.records[r].nextReport() // exists, because awaitReports has returned
		}
	}

	return reports, nil
}

// awaitReports waits for the next report of every rank. It marks a rank as absent if the rank does
// not report in time or can report no more. The caller must hold p.mu, which is released during
// waits.
func (p *Plane) awaitReports(ctx context.Context, w *waitState) error {
	ctx, cancel := control.WithDefaultTimeout(ctx, p.cfg.Group.Timeout.Get())
	defer cancel()
	for {
		p.markAbsentRanks()
		pendingRanks := p.ranksYetToReport()
		if len(pendingRanks) == 0 {
			return nil
		}

		hasTimedOut := errors.Is(ctx.Err(), context.DeadlineExceeded)
		switch {
		case p.closed:
			return p.checkUsable(driver.LaneFault)
		case hasTimedOut && p.stallDetector.mayBeStale(time.Now()):
			// This process was stopped for a while, so reports may have arrived unread.
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
