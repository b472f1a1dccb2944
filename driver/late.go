package driver

import (
	"fmt"
	"strings"
	"time"
)

// LateWarning reports that this rank is waiting for ranks that are late but still alive.
type LateWarning struct {
	// Group is empty while the group is being created.
	Group string
	// InCall names this rank's call, such as "AllReduce 12 of group world".
	InCall string
	Waited time.Duration
	// Ranks lists the late world ranks, and Members all ranks of the group in group order. Machines
	// holds the known host names of the late ranks, or nothing if the group shares a machine.
	// Activity describes what the late ranks are doing, if known.
	Ranks    []int
	Machines map[int]string
	Activity map[int]string
	Members  []int
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
	// After is how long a wait lasts before its first warning, or 0 for none. Further warnings
	// follow every 2*After.
	After time.Duration
	// Warn may be called concurrently. It must return quickly and must not call symmem.
	Warn func(LateWarning)
}

// Next returns the time until a wait's next warning, 0 if it is due, or a negative value if
// warnings are disabled. since is the time since the group's last warning, or negative if there was
// none.
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
