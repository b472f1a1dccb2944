package host

import (
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// why says that the message of a Recv was forgotten, in strict groups: no rank of which it may come
// can still send it. Such a Recv may keep this rank from the very collective at which the balances
// of all ranks would show that.
func (r *receive) why() error {
	c := r.c
	if !c.cfg.Strict {
		return nil
	}
	from := c.Others()
	if r.plan.Root != driver.AnySource {
		from = []int{r.plan.Root}
	}
	if !slices.ContainsFunc(from, r.mayCome) {
		return c.Unbalanced(r.after + 1)
	}
	return nil
}

// mayCome reports whether a rank may still send the message: it has not called the collective that
// comes after the Recv, or not all that it sent before has begun to come. The words are read in the
// order in which that rank writes them last.
func (r *receive) mayCome(source int) bool {
	c := r.c
	if c.TicketsOf(source) <= r.after {
		return true
	}
	in, box := &c.mail.inlets[source], c.pipe(source, c.cfg.Rank)
	sent := spin.LoadAcquire64(&box.posted)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.begun != sent || r.ended.Load() {
		return true
	}
	if !r.claimed.Load() {
		return false
	}
	p := in.parcels[address{r.plan.Tag, r.number}]
	return r.source != source || p != nil && p.come
}
