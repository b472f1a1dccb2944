package shm

import (
	"symmem/internal/control"
	"symmem/internal/spin"
)

// announcement is what a rank has launched under a ticket. The ticket is 0 while it changes.
type announcement struct{ ticket, digest uint64 }

// announcements is how many tickets back they are known, a power of two.
const announcements = 64

var _ control.Announcements = (*plane)(nil)

// Announce publishes the digest of the call of a ticket of this rank.
func (p *plane) Announce(ticket, digest uint64) {
	if p.BeginUse() != nil {
		return
	}
	defer p.EndUse()
	a := &p.me.announced[ticket%announcements]
	spin.StoreRelease64(&a.ticket, 0)
	spin.StoreRelease64(&a.digest, digest)
	spin.StoreRelease64(&a.ticket, ticket)
}

// Differing lists the ranks that have announced another digest.
func (p *plane) Differing(ticket, digest uint64) (ranks []int) {
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

// Submitted reports whether all ranks have submitted a ticket. It is true on a closed plane.
func (p *plane) Submitted(ticket uint64) bool {
	if p.BeginUse() != nil {
		return true
	}
	defer p.EndUse()
	for _, b := range p.others {
		if spin.LoadAcquire64(&b.status.submitted) < ticket {
			return false
		}
	}
	return true
}
