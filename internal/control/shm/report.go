package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// After a failure, ranks exchange reports about it. Each rank appends its reports to a log in
// shared memory, with slots of 8 KiB: a report of 10 KiB takes two slots. Slots are never reused,
// so a slow rank can still read old reports. A rank is absent once it has exited, has left or has
// missed the deadline for a report. The others expect no more reports from an absent rank.

// exchangeReports writes this rank's report and returns the next report of every rank, by group
// rank. The entry of an absent rank is nil.
func (e *exchange) exchangeReports(ctx context.Context) ([][]byte, error) {
	e.lane.mu.Lock()
	defer e.lane.mu.Unlock()
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

// slotCount returns the number of slots of a report, which is 1 even for an empty report.
func slotCount(reportBytes uint64) uint64 {
	fullOrPartial := (reportBytes + chunkBytes - 1) / chunkBytes
	return max(1, fullOrPartial)
}

// writtenStep is stored in slot.step when a slot of a log has been written.
const writtenStep = 1

// writeReport appends this rank's report to its log. It writes the report's first slot last,
// because other ranks wait only for this slot.
func (e *exchange) writeReport() error {
	slotsUsed := e.lane.slotsWritten
	slots := slotCount(uint64(len(e.payload)))
	if slotsUsed+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, slotsUsed, faultSlots, driver.ErrClosed)
	}

	unused := e.g.ownBlock.fault[slotsUsed:]
	for i := int(slots) - 1; i >= 0; i-- {
		s := &unused[i]
		copy(s.data[:], e.payload[i*chunkBytes:])
		spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
		spin.StoreRelease64(&s.step, writtenStep)
	}

	e.lane.slotsWritten += slots
	e.g.wakeSleepers()
	return nil
}

// awaitReports waits until every rank has sent its next report or is absent.
func (e *exchange) awaitReports(ctx context.Context) error {
	e.markFullLogs()
	nextSlot := func(b *block) *uint64 {
		return &b.fault[e.lane.slotsRead[b]].step // in range, because the log is not full
	}
	w := &slowWait{
		word: nextSlot, want: writtenStep, ignoreFaults: true, callText: e.callText,
	}
	for {
		w.awaited = e.presentRanks()
		err := e.g.waitSlowly(ctx, w)
		if err == nil {
			return nil
		}

		canContinue := e.markAbsent(err, e.g.missing(w))
		if !canContinue {
			return err
		}
	}
}

// markFullLogs marks the other ranks as absent whose logs have no slots left to read.
func (e *exchange) markFullLogs() {
	for _, r := range e.g.OtherRanks() {
		if e.lane.slotsRead[e.g.blocks[r]] == faultSlots {
			e.lane.absent[r] = true
		}
	}
}

func (e *exchange) presentRanks() []int {
	return slices.DeleteFunc(e.g.OtherRanks(), func(r int) bool { return e.lane.absent[r] })
}

// markAbsent marks as absent the ranks that have caused err, the error of a wait for missingRanks.
// It returns false if the exchange cannot continue after err.
func (e *exchange) markAbsent(err error, missingRanks []int) bool {
	var deadlock *driver.DeadlockError
	var absentRanks []int
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		absentRanks = e.g.selectExited(missingRanks)
	case errors.As(err, &deadlock): // for example, because ranks have left
		isUninvolved := func(r int) bool { return deadlock.Activity[e.g.cfg.Ranks[r]] == "" }
		absentRanks = slices.DeleteFunc(missingRanks, isUninvolved)
	case errors.As(err, new(*driver.TimeoutError)):
		absentRanks = missingRanks
	default:
		return false
	}

	for _, r := range absentRanks {
		e.lane.absent[r] = true
	}

	return true
}

// nextReport reads the next report in a rank's log. The rank must have written the report. Its size
// is checked, because a faulty rank may write any value.
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
