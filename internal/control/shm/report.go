package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// exchangeReports performs an exchange on LaneFault, where ranks exchange reports about failures.
// Every rank appends its report to its log, in slots that are never used again, and reads the logs
// of the others. The entry of a rank that is absent, because it is late, lost or has left, is nil.
// Ranks may disagree about the absent ranks.
func (e *exchange) exchangeReports(ctx context.Context) ([][]byte, error) {
	if err := e.writeReport(); err != nil {
		return nil, err
	}
	if err := e.awaitReports(ctx); err != nil {
		return nil, err
	}
	reports := make([][]byte, len(e.g.blocks))
	for r, b := range e.g.blocks {
		if e.lane.absent[r] {
			continue
		}
		report, err := e.lane.nextReport(b)
		if err != nil {
			return nil, fmt.Errorf("reading the report of rank %d: %w", e.g.cfg.Ranks[r], err)
		}
		reports[r] = report
	}
	return reports, nil
}

// slotCount returns the number of slots for a report of the given size.
func slotCount(bytes uint64) uint64 { return max(1, (bytes+chunkBytes-1)/chunkBytes) }

// writeReport appends this rank's report to its log. It writes the first slot last, so that a rank
// that sees this slot sees the whole report.
func (e *exchange) writeReport() error {
	first, slots := e.lane.step, slotCount(uint64(len(e.payload)))
	if first+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, first, faultSlots, driver.ErrClosed)
	}
	for i := int(slots) - 1; i >= 0; i-- {
		s := &e.g.ownBlock.fault[int(first)+i]
		copy(s.data[:], e.payload[min(i*chunkBytes, len(e.payload)):])
		spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
		spin.StoreRelease64(&s.step, 1)
	}
	e.lane.step += slots
	e.g.wakeSleepers()
	return nil
}

// awaitReports waits until every rank that is not absent has written its next report. It marks
// ranks as absent that do not write it in time.
func (e *exchange) awaitReports(ctx context.Context) error {
	w := &slowWait{
		word: func(b *block) *uint64 { return &b.fault[e.lane.slotsRead[b]].step }, want: 1,
		ignoreFaults: true, callText: e.callText,
	}
	for {
		w.awaited = e.presentRanks()
		err := e.g.waitSlowly(ctx, w)
		if err == nil || !e.markAbsent(err, e.g.missing(w)) {
			return err
		}
	}
}

// presentRanks returns the other ranks that are not absent. It marks ranks whose logs are full as
// absent.
func (e *exchange) presentRanks() []int {
	var ranks []int
	for _, r := range e.g.OtherRanks() {
		if e.lane.slotsRead[e.g.blocks[r]] == faultSlots {
			e.lane.absent[r] = true
		}
		if !e.lane.absent[r] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// markAbsent marks as absent the missing ranks that are the reason for err, the error of a wait.
// It reports whether the exchange can continue without them.
func (e *exchange) markAbsent(err error, missingRanks []int) bool {
	var deadlock *driver.DeadlockError
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		missingRanks = e.g.selectLost(missingRanks)
	case errors.As(err, &deadlock):
		missingRanks = slices.DeleteFunc(missingRanks, func(r int) bool {
			return deadlock.Activity[e.g.cfg.Ranks[r]] == "" // not part of the deadlock
		})
	case !errors.As(err, new(*driver.TimeoutError)):
		return false
	}
	for _, r := range missingRanks {
		e.lane.absent[r] = true
	}
	return true
}

// nextReport returns the next report in a rank's log. The first slot of the report must have been
// written.
func (l *lane) nextReport(b *block) ([]byte, error) {
	first := l.slotsRead[b]
	payloadBytes := spin.LoadAcquire64(&b.fault[first].payloadBytes)
	slots := slotCount(payloadBytes)
	if payloadBytes > driver.MaxPayload || first+slots > faultSlots {
		return nil, fmt.Errorf("the report has %d bytes: it can have at most %d bytes, in %d slots",
			payloadBytes, driver.MaxPayload, faultSlots-first)
	}
	report := make([]byte, 0, payloadBytes)
	for i := range slots {
		remaining := int(payloadBytes) - len(report)
		report = append(report, b.fault[first+i].data[:min(remaining, chunkBytes)]...)
	}
	l.slotsRead[b] += slots
	return report, nil
}
