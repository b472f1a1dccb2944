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
// Every rank has a log in shared memory, an array of slots. It appends its report to this log, and
// reads the logs of the others. Slots are never reused, so a slow rank can still read old reports.
//
// The result holds the reports by group rank. The report of an absent rank is nil. A rank becomes
// absent if it is late, is lost or has left. Ranks may disagree about the absent ranks.
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
	first := e.lane.step // slots before it are in use
	slots := slotCount(uint64(len(e.payload)))
	if first+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, first, faultSlots, driver.ErrClosed)
	}

	for i := int(slots) - 1; i >= 0; i-- {
		s := &e.g.ownBlock.fault[int(first)+i]
		offset := min(i*chunkBytes, len(e.payload)) // an empty report has a slot, too
		copy(s.data[:], e.payload[offset:])
		spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
		spin.StoreRelease64(&s.step, writtenStep)
	}

	e.lane.step += slots
	e.g.wakeSleepers()
	return nil
}

// writtenStep is slot.step of a written slot in a log. It is 0 before.
const writtenStep = 1

// awaitReports waits until every rank that is not absent has written its next report. It marks
// ranks as absent that do not write it in time.
func (e *exchange) awaitReports(ctx context.Context) error {
	nextSlot := func(b *block) *uint64 { return &b.fault[e.lane.slotsRead[b]].step }
	w := &slowWait{
		word: nextSlot, want: writtenStep, ignoreFaults: true, callText: e.callText,
	}
	e.markFullLogs() // nextSlot must not be called for them
	for {
		w.awaited = e.presentRanks()
		err := e.g.waitSlowly(ctx, w)
		if err == nil {
			return nil
		}

		if !e.markAbsent(err, e.g.missing(w)) {
			return err
		}
	}
}

// markFullLogs marks the other ranks as absent whose logs have no slot for another report.
func (e *exchange) markFullLogs() {
	for _, r := range e.g.OtherRanks() {
		if e.lane.slotsRead[e.g.blocks[r]] == faultSlots {
			e.lane.absent[r] = true
		}
	}
}

// presentRanks returns the other ranks that are not absent.
func (e *exchange) presentRanks() []int {
	return slices.DeleteFunc(e.g.OtherRanks(), func(r int) bool { return e.lane.absent[r] })
}

// markAbsent marks the ranks as absent that caused err, the error of a wait. These are some or all
// of missingRanks, the ranks for which the wait waited. It returns false if no rank is the cause.
// In this case, the exchange cannot continue.
func (e *exchange) markAbsent(err error, missingRanks []int) bool {
	var deadlock *driver.DeadlockError
	causes := missingRanks
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		causes = e.g.selectLost(missingRanks)
	case errors.As(err, &deadlock):
		isUninvolved := func(r int) bool { return deadlock.Activity[e.g.cfg.Ranks[r]] == "" }
		causes = slices.DeleteFunc(missingRanks, isUninvolved)
	case errors.As(err, new(*driver.TimeoutError)):
		// All missing ranks are late.
	default:
		return false
	}

	for _, r := range causes {
		e.lane.absent[r] = true
	}

	return true
}

// nextReport returns the next report in a rank's log. Call it when the first slot of the report has
// been written. The values in the log are not trusted.
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
