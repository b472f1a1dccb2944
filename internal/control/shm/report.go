package shm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// On the fault lane, every rank appends its reports to a log, in slots that are never reused, and
// reads the other ranks' logs at its own pace. A rank that does not report in time is absent. Ranks
// may disagree about which ranks are absent.

func (x *exchange) report(ctx context.Context) ([][]byte, error) {
	if err := x.writeReport(); err != nil {
		return nil, err
	}
	if err := x.awaitReports(ctx); err != nil {
		return nil, err
	}
	got := make([][]byte, len(x.g.blocks))
	for r, b := range x.g.blocks {
		if x.lane.absent[r] {
			continue
		}
		var err error
		if got[r], err = x.lane.nextReport(b); err != nil {
			return nil, fmt.Errorf("reading the report of rank %d: %w", x.g.cfg.Ranks[r], err)
		}
	}
	return got, nil
}

func slotsOf(bytes uint64) uint64 { return max(1, (bytes+chunkBytes-1)/chunkBytes) }

// writeReport appends this rank's payload to its log. It writes the first slot last, so that a rank
// that sees the first slot sees the whole report.
func (x *exchange) writeReport() error {
	first, slots := x.lane.step, slotsOf(uint64(len(x.payload)))
	if first+slots > faultSlots {
		return fmt.Errorf("a report of %d slots does not fit: %d of %d slots of the fault log are "+
			"in use: %w", slots, first, faultSlots, driver.ErrClosed)
	}
	for i := int(slots) - 1; i >= 0; i-- {
		s := &x.g.me.fault[int(first)+i]
		copy(s.data[:], x.payload[min(i*chunkBytes, len(x.payload)):])
		spin.StoreRelease64(&s.total, uint64(len(x.payload)))
		spin.StoreRelease64(&s.step, 1)
	}
	x.lane.step += slots
	x.g.wakeSleepers()
	return nil
}

func (x *exchange) awaitReports(ctx context.Context) error {
	w := &slowWait{
		word: func(b *block) *uint64 { return &b.fault[x.lane.read[b]].step }, want: 1,
		ignoreFaults: true, doing: x.doing,
	}
	for {
		w.awaited = x.presentRanks()
		err := x.g.waitSlowly(ctx, w)
		if err == nil || !x.markAbsent(err, x.g.missing(w)) {
			return err
		}
	}
}

// presentRanks lists the other ranks that are not absent. Ranks whose logs are full become absent.
func (x *exchange) presentRanks() []int {
	var ranks []int
	for _, r := range x.g.Others() {
		if x.lane.read[x.g.blocks[r]] == faultSlots {
			x.lane.absent[r] = true
		}
		if !x.lane.absent[r] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// markAbsent marks ranks as absent after a wait for them has failed. It reports whether the
// exchange can continue without them.
func (x *exchange) markAbsent(err error, missing []int) bool {
	var deadlock *driver.DeadlockError
	switch {
	case errors.As(err, new(*driver.RankLostError)):
		missing = x.g.lost(missing)
	case errors.As(err, &deadlock):
		missing = slices.DeleteFunc(missing, func(r int) bool {
			return deadlock.Activity[x.g.cfg.Ranks[r]] == ""
		})
	case !errors.As(err, new(*driver.TimeoutError)):
		return false
	}
	for _, r := range missing {
		x.lane.absent[r] = true
	}
	return true
}

// nextReport reads the next report in a rank's log. The report's first slot must have been posted.
func (l *lane) nextReport(b *block) ([]byte, error) {
	first := l.read[b]
	total := spin.LoadAcquire64(&b.fault[first].total)
	slots := slotsOf(total)
	if total > driver.MaxPayload || first+slots > faultSlots {
		return nil, fmt.Errorf("the report has %d bytes: at most %d, and %d slots are left",
			total, driver.MaxPayload, faultSlots-first)
	}
	report := make([]byte, 0, total)
	for i := range slots {
		left := int(total) - len(report)
		report = append(report, b.fault[first+i].data[:min(left, chunkBytes)]...)
	}
	l.read[b] += slots
	return report, nil
}
