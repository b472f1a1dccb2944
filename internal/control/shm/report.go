package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/ranked"
	"symmem/internal/spin"
)

// faultLogs holds this rank's state of driver.LaneFault.
//
// After a failure, ranks exchange reports about it. Each rank appends its reports to a log in
// shared memory, with slots of 8 KiB: a report of 10 KiB takes two slots. Slots are never reused,
// so a slow rank can still read old reports.
type faultLogs struct {
	mu           ranked.Mutex[laneMu] // serializes exchanges and guards the fields below
	slotsWritten uint64               // slots in this rank's log
	slotsRead    []uint64             // slots that this rank has read, by group rank of the writer
	// absent contains the group ranks from which this rank expects no more reports: each has exited,
	// has left, has filled its log, or was late with a report.
	absent []bool
}

// exchangeReports writes this rank's report and returns the next report of every rank, by group
// rank. The entry of an absent rank is nil.
func exchangeReports(ctx context.Context, g *Group, report []byte) ([][]byte, error) {
	callText := func() string { return control.ExchangeName(g.cfg, driver.LaneFault) }
	// Ranks report only after a failure. If this rank has not failed, another rank has.
	g.fail(&driver.PeerError{InCall: callText()})
	logs := &g.faultLogs
	logs.mu.Lock()
	defer logs.mu.Unlock()
	if err := logs.write(g, report); err != nil {
		return nil, err
	}

	if err := logs.await(ctx, g, callText); err != nil {
		return nil, err
	}

	reports := make([][]byte, len(g.blocks))
	for r := range g.blocks {
		if logs.absent[r] {
			continue
		}

		next, err := logs.read(g, r)
		if err != nil {
			return nil, fmt.Errorf("reading the report of rank %d: %w", g.cfg.Ranks[r], err)
		}

		reports[r] = next
	}

	return reports, nil
}

// slotIsWritten is the slot.step of a written slot in a log.
const slotIsWritten = 1

// write appends a report to this rank's log. It writes the report's first slot last, because other
// ranks wait only for this slot.
func (f *faultLogs) write(g *Group, report []byte) error {
	slots := slotCount(uint64(len(report)))
	if f.slotsWritten+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, f.slotsWritten, faultSlots, driver.ErrClosed)
	}

	unused := g.ownBlock.faultLog[f.slotsWritten:]
	for i := int(slots) - 1; i >= 0; i-- {
		s := &unused[i]
		copy(s.data[:], report[i*chunkBytes:])
		spin.StoreRelease64(&s.payloadBytes, uint64(len(report)))
		spin.StoreRelease64(&s.step, slotIsWritten)
	}

	f.slotsWritten += slots
	g.wakeSleepers()
	return nil
}

// slotCount returns the number of slots of a report. An empty report takes one slot.
func slotCount(reportBytes uint64) uint64 {
	return max(1, (reportBytes+chunkBytes-1)/chunkBytes)
}

// await waits until every rank has written its next report or is absent.
func (f *faultLogs) await(ctx context.Context, g *Group, callText func() string) error {
	f.markFullLogs(g)
	w := &slowWait{
		wordOf:       func(r int) *uint64 { return &g.blocks[r].faultLog[f.slotsRead[r]].step },
		want:         slotIsWritten,
		ignoreFaults: true,
		callText:     callText,
	}
	for {
		w.awaited = slices.DeleteFunc(g.OtherRanks(), func(r int) bool { return f.absent[r] })
		err := g.waitSlowly(ctx, w)
		if err == nil {
			return nil
		}

		canContinue := f.markAbsent(g, err, g.missing(w))
		if !canContinue {
			return err
		}
	}
}

// markFullLogs marks other ranks as absent if this rank has read all slots of their logs.
func (f *faultLogs) markFullLogs(g *Group) {
	for _, r := range g.OtherRanks() {
		if f.slotsRead[r] == faultSlots {
			f.absent[r] = true
		}
	}
}

// markAbsent handles the error of a wait for missingRanks. It marks those that have caused err as
// absent, or returns false if err has a different cause.
func (f *faultLogs) markAbsent(g *Group, err error, missingRanks []int) (canContinue bool) {
	var deadlock *driver.DeadlockError
	var absentRanks []int
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		absentRanks = g.selectExited(missingRanks)
	case errors.As(err, &deadlock): // Activity lists the ranks that cannot arrive
		canArrive := func(r int) bool { return deadlock.Activity[g.cfg.Ranks[r]] == "" }
		absentRanks = slices.DeleteFunc(missingRanks, canArrive)
	case errors.As(err, new(*driver.TimeoutError)):
		absentRanks = missingRanks
	default:
		return false
	}

	for _, r := range absentRanks {
		f.absent[r] = true
	}

	return true
}

// read returns the next report in a rank's log, which must contain one. It checks the size, because
// a faulty rank may write any value.
func (f *faultLogs) read(g *Group, rank int) ([]byte, error) {
	unread := g.blocks[rank].faultLog[f.slotsRead[rank]:]
	reportBytes := spin.LoadAcquire64(&unread[0].payloadBytes)
	slots := slotCount(reportBytes)
	if reportBytes > driver.MaxPayload || slots > uint64(len(unread)) {
		return nil, fmt.Errorf("the report has %d bytes: it can have at most %d bytes, in %d slots",
			reportBytes, driver.MaxPayload, len(unread))
	}

	report := make([]byte, 0, reportBytes)
	for i := range slots {
		remaining := int(reportBytes) - len(report)
		report = append(report, unread[i].data[:min(remaining, chunkBytes)]...)
	}

	f.slotsRead[rank] += slots
	return report, nil
}
