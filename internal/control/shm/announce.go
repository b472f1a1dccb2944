package shm

import (
	"symmem/internal/control"
	"symmem/internal/spin"
)

// announcement is the digest of the collective that a rank has launched under a ticket. ticket is 0
// while the entry is being written.
type announcement struct{ ticket, digest uint64 }

// announcements is the number of entries that a rank keeps, a power of two.
const announcements = 64

var _ control.Announcements = (*plane)(nil)

func (p *plane) Announce(ticket, digest uint64) {
	if p.BeginUse() != nil {
		return
	}
	defer p.EndUse()
	a := &p.ownBlock.announced[ticket%announcements]
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
		a := &b.announced[ticket%announcements]
		before := spin.LoadAcquire64(&a.ticket)
		theirs := spin.LoadAcquire64(&a.digest)
		if before == ticket && spin.LoadAcquire64(&a.ticket) == ticket && theirs != digest {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// On a closed plane, Submitted returns true.
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
