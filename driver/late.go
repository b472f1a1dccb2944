package driver

import (
	"fmt"
	"strings"
	"time"
)

// LateWarning reports that this rank is waiting for ranks that are late but still alive. The
// wait continues.
type LateWarning struct {
	// Group is the group's name. It is empty while the group is being created.
	Group string
	// InCall names the call in which this rank is waiting, such as "AllReduce 12 of group world".
	InCall string
	// Waited is the duration of the wait so far.
	Waited time.Duration
	// Ranks lists the world ranks that have not arrived.
	Ranks []int
	// Machines holds the known host names of Ranks, by world rank. It is empty if the ranks of the
	// group share a machine.
	Machines map[int]string
	// Activity describes the known activities of Ranks, by world rank.
	Activity map[int]string
	// Members lists the world ranks of the group in group order. It is empty if it is not known.
	Members []int
}

// String returns the warning as one line.
func (w *LateWarning) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: waiting for %v for %s", w.InCall, w.Waited,
		RanksOn(w.Ranks, w.Members, w.Machines))
	writeActivity(&b, w.Activity, w.Members)
	b.WriteString("; the wait continues")
	return b.String()
}

// Late configures warnings about late ranks. The zero value disables them.
type Late struct {
	// After is how long a wait lasts before its first warning. Further warnings follow at intervals
	// of 2*After. 0 disables warnings.
	After time.Duration
	// Warn is called with each warning, from any goroutine and possibly concurrently. It must
	// return quickly and must not call symmem.
	Warn func(LateWarning)
}

// Next returns the time until a wait's next warning: 0 if the warning is due, and a negative value
// if warnings are disabled. waited is the duration of the wait so far. since is the time since the
// group's last warning, or negative if there was none; a warning from before the wait is ignored.
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
