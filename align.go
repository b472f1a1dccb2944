package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

// aligner realigns a group's pools after a fault, so that all ranks place buffers identically
// again. This is necessary because one rank may have made calls that another rank never made. A
// rank that sees a fault marks the pools suspect. The ranks realign a suspect pool before they next
// compare its history; see docs/design/faults.md.
type aligner struct {
	roster
	rt         *Runtime
	comm       driver.Communicator
	life       *lifetime
	comparison *comparison
}

// suspicion records whether a pool is suspect, that is, may place buffers differently on other
// ranks. mu guards the fields from raised on.
type suspicion struct {
	mu     *ranked.Spin[poolMu]
	domain *Group
	raised bool
	faults map[*lifetime]bool
	// aligned lists the world ranks with which this rank has realigned the pool. When these are all
	// ranks of the domain, raised is cleared.
	aligned []int
	// preFault lists the blocks that were live when raised was set. All ranks have placed them
	// identically.
	preFault []alloc.View
	// rebuilds counts realignments.
	rebuilds int
	// guests holds the full ids of groups that have used the pool and have ranks outside its
	// domain.
	guests map[string]bool
}

// concerns reports whether the pool is suspect for the ranks of a group. The caller must hold mu.
func (d *suspicion) concerns(g *roster) bool {
	return d.raised && slices.ContainsFunc(g.ranks, func(r int) bool {
		return r != g.ranks[g.rank] && !slices.Contains(d.aligned, r)
	})
}

func (d *suspicion) suspects(g *roster) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.concerns(g)
}

// suspectsAny is like suspects, but for all ranks of the pool's domain.
func (d *suspicion) suspectsAny() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.raised
}

func (d *suspicion) rebuildCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rebuilds
}

func (d *suspicion) addGuest(g *roster) {
	if d.domain == nil || d.domain.contains(g) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.guests == nil {
		d.guests = map[string]bool{}
	}
	d.guests[g.full] = true
}

// affectedBy reports whether a fault of a group makes the pool suspect.
func (d *suspicion) affectedBy(g *roster) bool {
	if d.domain == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.domain.contains(g) || d.guests[g.full]
}

// trust records that the ranks of a group have realigned the pool. The caller must hold mu.
func (d *suspicion) trust(g *roster) {
	d.rebuilds++
	for failed := range d.faults {
		if failed.fault.Load() == faultResolved {
			delete(d.faults, failed)
		}
	}
	switch {
	case len(d.faults) > 0: // another fault has occurred in the meantime
	case g.contains(&d.domain.roster):
		d.raised, d.aligned, d.preFault = false, nil, nil
	default:
		d.aligned = slices.Clone(g.ranks)
	}
}

// meeting describes a call in which ranks realign pools if necessary, and then compare histories.
type meeting struct {
	tag string
	// A pool is realigned if, on some rank, it is suspect or needsAlign returns true for it.
	pools      []*Pool
	needsAlign func(*Pool) bool // set to nil after a realignment
	// ledgers returns the histories to compare.
	ledgers func() []agreement.Ledger
}

// maxRealignments limits the realignments in a meeting. More than one is needed only if other
// goroutines change the pools concurrently.
const maxRealignments = 3

// flagAlign requests a realignment in the flags of an agreement.
const flagAlign = 1

// meet realigns the pools if some rank requests it, and compares histories. The caller must hold
// Group.mu.
func (a *aligner) meet(ctx context.Context, m *meeting) error {
	for range maxRealignments {
		if err := a.life.cause(ctx); err != nil {
			return err
		}
		c := agreement.Config{Mode: agreement.Exact, Tag: m.tag, Ledgers: m.compared()}
		if slices.ContainsFunc(m.pools, func(p *Pool) bool { return m.wantsAlign(&a.roster, p) }) {
			c.Flags = flagAlign
		}
		outcome, err := a.comparison.run(ctx, a.comparison.lane(driver.LaneControl), c)
		if err != nil {
			return a.life.awaitCause(err)
		}
		switch {
		case outcome.Flags != 0:
		case len(c.Ledgers) == 0 && a.rt.Check() == CheckOff:
			return a.divergence(outcome)
		default:
			return a.comparison.note(outcome)
		}
		if err := a.align(ctx, m); err != nil {
			return a.life.awaitCause(err)
		}
		m.needsAlign = nil // it may stay true, for example while a graph uses the memory
	}
	if err := a.comparison.agree(ctx, m.tag, m.compared()...); err != nil {
		return err // some rank lacks a pool
	}
	return &unalignedError{fmt.Errorf("group %s: realigning pools after a fault: other goroutines "+
		"keep changing them; repeat the call once they have stopped", a.id)}
}

func (m *meeting) compared() []agreement.Ledger {
	if m.ledgers == nil {
		return nil
	}
	return m.ledgers()
}

func (m *meeting) wantsAlign(g *roster, p *Pool) bool {
	return p.suspicion.suspects(g) || m.needsAlign != nil && m.needsAlign(p)
}

// unalignedError reports why pools could not be realigned. All ranks return it, and the group
// remains usable.
type unalignedError struct{ error }

func (e *unalignedError) Unwrap() error { return e.error }

// keepsMemory reports whether a pool does not allocate part of its memory because only some ranks
// were using that part when the pool was realigned.
func keepsMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Keeps()
}

func (a *aligner) suspectsPools() bool {
	return slices.ContainsFunc(a.comparison.pools(), func(p *Pool) bool {
		return p.suspicion.suspects(&a.roster)
	})
}

// alignFirst realigns the pools of a new group if suspect is true, which must be the same on all
// ranks. If that fails, the first call that uses the pools tries again.
func (a *aligner) alignFirst(ctx context.Context, suspect bool) error {
	if !suspect {
		return nil
	}
	err := a.align(ctx, &meeting{pools: a.comparison.pools()})
	if errors.As(err, new(*unalignedError)) {
		return nil
	}
	return err
}
