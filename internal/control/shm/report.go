package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// After a failure, ranks exchange reports about it. Every rank has a log in shared memory: an array
// of slots for its reports, in order. Suppose that a slot holds 8 KiB, and that rank 1 sends a
// report of 10 KiB and then one of 100 bytes:
//
//   - Rank 1 writes the first report to slots 0 and 1 of its log, and the second one to slot 2.
//   - Rank 0 waits until slot 0 is written, and reads the first report. Slot 0 also contains the
//     size of the report, so rank 0 knows that it must wait for slot 2 next.
//   - If rank 1 sends no report in time, exits or leaves the group, rank 0 regards it as absent: it
//     expects no more reports from rank 1. Other ranks may have received its report.
//
// Slots are never reused, so a slow rank can still read old reports.

// exchangeReports sends this rank's report to all ranks. It returns the next report of every rank,
// by group rank, or nil for an absent rank.
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

// slotCount returns the number of slots for a report of the given size. An empty report has a slot,
// too.
func slotCount(bytes uint64) uint64 { return max(1, (bytes+chunkBytes-1)/chunkBytes) }

// writtenStep is slot.step of a written slot in a log. It is 0 before.
const writtenStep = 1

// writeReport appends this rank's report to its log. It writes the first slot last, so that a rank
// that sees this slot sees the whole report.
func (e *exchange) writeReport() error {
	first := e.lane.step // on this lane, the number of slots in use
	slots := slotCount(uint64(len(e.payload)))
	if first+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, first, faultSlots, driver.ErrClosed)
	}

	for i := int(slots) - 1; i >= 0; i-- {
		s := &e.g.ownBlock.fault[int(first)+i]
		offset := i * chunkBytes // less than the size, or 0
		copy(s.data[:], e.payload[offset:])
		spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
		spin.StoreRelease64(&s.step, writtenStep)
	}

	e.lane.step += slots
	e.g.wakeSleepers()
	return nil
}

// awaitReports waits until every rank that is not absent has written its next report. It marks
// ranks as absent that do not write it in time.
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

		hasCause := e.markAbsent(err, e.g.missing(w))
		if !hasCause {
			return err
		}
	}
}

// markFullLogs marks other ranks as absent if this rank has read all slots of their logs.
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

// markAbsent marks the ranks as absent that have caused err, the error of a wait. These are some or
// all of missingRanks, whose reports have not arrived. It returns false if the error has another
// cause, so that the exchange cannot continue.
func (e *exchange) markAbsent(err error, missingRanks []int) bool {
	var deadlock *driver.DeadlockError
	var causes []int
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		causes = e.g.selectLost(missingRanks)
	case errors.As(err, &deadlock): // about ranks that left the group, for example
		isUninvolved := func(r int) bool { return deadlock.Activity[e.g.cfg.Ranks[r]] == "" }
		causes = slices.DeleteFunc(missingRanks, isUninvolved)
	case errors.As(err, new(*driver.TimeoutError)):
		causes = missingRanks // all of them are late
	default:
		return false
	}

	for _, r := range causes {
		e.lane.absent[r] = true
	}

	return true
}

// nextReport returns the next report in a rank's log, whose first slot must have been written. It
// validates the sizes in the log, because a faulty rank may write any value.
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
