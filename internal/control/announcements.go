package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. A ticket is
// the number of a collective in its group. Each rank publishes, without waiting, a digest of
// the calls that it launched under its latest tickets. Ranks thus detect a mismatch even if one of
// them compares a call on the host, before launching it, and another compares it in a kernel.
type Announcements interface {
	// Submitted reports whether all ranks have submitted the ticket and none has withdrawn it. It
	// reads the current state, not a cached copy.
	Submitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks that are known to have announced a different digest for the
	// ticket.
	Differing(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane on which other ranks learn of a fault only with some
// delay.
type Notifier interface {
	// AwaitNotified waits, for a limited time, until the other ranks have acknowledged this rank's
	// fault. It does not wait for ranks that have failed themselves, have left, or are lost.
	AwaitNotified()
	// CanSucceed reports whether a collective that has ended on this rank can have completed: no
	// other rank has reported a fault, and every lost rank had submitted the ticket. If this
	// process was stopped, for example by SIGSTOP, CanSucceed first waits until it has read the
	// notices that arrived in the meantime.
	CanSucceed(ticket uint64) bool
}
