package driver

import (
	"fmt"
	"strings"
	"time"
)

// LateWarning reports that live ranks keep this rank waiting. The wait continues.
type LateWarning struct {
	// Group names the group; empty if none has been created yet.
	Group string
	// Doing describes the wait of this rank, such as "AllReduce 12 of group world".
	Doing string
	// Waited is the duration of the wait so far.
	Waited time.Duration
	// Ranks lists the world ranks that have not arrived.
	Ranks []int
	// Activity describes what those ranks are doing, by world rank, as far as it is known.
	Activity map[int]string
	// Members lists the world ranks of the group in group order; empty if it is not known.
	Members []int
}

// String formats the warning as one line.
func (w *LateWarning) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: waiting for %v for %s", w.Doing, w.Waited, RanksOf(w.Ranks, w.Members))
	writeActivity(&b, w.Activity, w.Members)
	b.WriteString("; the wait goes on")
	return b.String()
}

// Late says when to warn about late ranks, and which function to call. The zero value never warns.
type Late struct {
	// After is how long a wait lasts before the first warning. Further ones follow every 2*After: at
	// 30 s, once a minute. 0 means no warnings.
	After time.Duration
	// Warn is told. It may be called from any goroutine, several at once; it returns soon and does
	// not call into this module.
	Warn func(LateWarning)
}

// Next returns how long it is until the next warning in a wait that has lasted so long: 0 if it is
// due, negative if there is none. The time since the last warning of the group is since, negative
// if there was none; one that came before the wait began does not count.
func (l Late) Next(waited, since time.Duration) time.Duration {
	switch {
	case l.After <= 0 || l.Warn == nil:
		return -1
	case since < 0 || since > waited:
		return max(0, l.After-waited)
	default:
		return max(0, l.After-waited, 2*l.After-since)
	}
}
