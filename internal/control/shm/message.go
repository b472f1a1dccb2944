package shm

import (
	"context"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

var _ control.Messages = (*plane)(nil)

// Count treats all collectives called so far as completed, because earlier messages have been
// compared or never will be.
func (p *plane) Count(call *driver.Call) control.Message {
	after := spin.LoadAcquire64(&p.submitted)
	p.Counts.Mu.Lock()
	defer p.Counts.Mu.Unlock()
	return control.Message{After: after, Number: p.CountMessage(call, after, after)}
}

func (p *plane) DiagnoseMessage(peer int, since time.Time, callText func() string) error {
	if p.BeginUse() != nil {
		return nil
	}

	defer p.EndUse()
	from := []int{peer}
	if peer == driver.AnySource {
		if from = p.PresentRanks(); len(from) == 0 {
			from = p.OtherRanks()
		}
	}

	w := &slowWait{
		isReady: func() bool { return false }, awaited: from, callText: callText,
		timeout: p.cfg.Timeout.Get(),
		begin:   sys.Monotonic() - min(uint64(time.Since(since)), sys.Monotonic()),
	}
	return p.checkWait(context.Background(), w)
}

func (p *plane) HasCalledMore(peer int, collectives uint64) bool {
	if p.BeginUse() != nil {
		return false
	}

	defer p.EndUse()
	from := []int{peer}
	if peer == driver.AnySource {
		from = p.OtherRanks()
	}

	return !slices.ContainsFunc(from, func(r int) bool {
		return spin.LoadAcquire64(&p.blocks[r].status.submitted) <= collectives
	})
}

// IsLost reports whether a process exited before its rank left the group.
func (p *plane) IsLost(peer int) bool {
	return slices.Contains(p.lostPeers(), peer)
}
