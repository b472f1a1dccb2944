package shm

import (
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/sys"
)

var _ driver.Inspector = (*Group)(nil)

// Waits describes the slow waits of this rank, oldest first.
func (g *Group) Waits() []driver.LateWarning {
	if g.BeginUse() != nil {
		return nil
	}
	defer g.EndUse()
	var all []driver.LateWarning
	for _, w := range g.observe() {
		q := control.WaitStatus{
			Group: g.cfg, Doing: func() string { return w.doing },
			Waited: time.Duration(sys.Monotonic() - w.begin),
		}
		late := q.Describe(g.rankStates(&slowWait{
			ready: func() bool { return false }, from: w.missing,
		}))
		if late != nil {
			all = append(all, *late)
		}
	}
	return all
}

// observation describes a slow wait of another goroutine.
type observation struct {
	doing   string
	begin   uint64
	missing []int // group ranks
}

// observe describes all slow waits. The functions of a slowWait read variables that the waiting
// goroutine changes as soon as it has removed the wait from the list. So observe holds Mu while it
// calls them. The function ready belongs to the waiting goroutine. Instead of calling it, observe
// counts all awaited ranks as missing.
func (g *Group) observe() []observation {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	all := make([]observation, len(g.list))
	for i, w := range g.list {
		all[i] = observation{doing: w.doing(), begin: w.begin, missing: w.from}
		if w.ready == nil {
			all[i].missing = g.missing(w)
		}
	}
	return all
}

// Activity describes the activities of the other ranks, by world rank.
func (g *Group) Activity() map[int]string {
	if g.BeginUse() != nil {
		return nil
	}
	defer g.EndUse()
	return control.Activity(g.cfg, g.rankStates(&slowWait{}))
}
