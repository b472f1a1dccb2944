package shm

import (
	"symmem/internal/control"
	"symmem/internal/spin"
)

var _ control.Announcements = (*plane)(nil)

func (p *plane) Announce(ticket, digest uint64) {
	if p.BeginUse() != nil {
		return
	}

	defer p.EndUse()
	a := &p.ownBlock.announced[ticket%announcementCount]
	spin.StoreRelease64(&a.ticket, 0)
	spin.StoreRelease64(&a.digest, digest)
	spin.StoreRelease64(&a.ticket, ticket)
}

func (p *plane) DifferingRanks(ticket, digest uint64) (ranks []int) {
	if p.BeginUse() != nil {
		return nil
	}

	defer p.EndUse()
	for r, b := range p.blocks {
		a := &b.announced[ticket%announcementCount]
		before := spin.LoadAcquire64(&a.ticket)
		theirs := spin.LoadAcquire64(&a.digest)
		if before == ticket && spin.LoadAcquire64(&a.ticket) == ticket && theirs != digest {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

// AllSubmitted returns true on a closed plane.
func (p *plane) AllSubmitted(ticket uint64) bool {
	if p.BeginUse() != nil {
		return true
	}

	defer p.EndUse()
	for _, b := range p.otherBlocks {
		if spin.LoadAcquire64(&b.status.submitted) < ticket {
			return false
		}
	}

	return true
}
