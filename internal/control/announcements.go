package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes, without waiting, the calls that it launched under its latest tickets, so that a
// mismatch is detected even if one rank compares a call before launching it while another compares
// it in its kernel.
type Announcements interface {
	// Submitted reports whether all ranks have submitted the ticket. A ticket that a rank has
	// withdrawn counts as not submitted. The answer is never out of date.
	Submitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks known to have announced a different digest for the ticket.
	Differing(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane on which other ranks learn of a fault only with some
// delay.
type Notifier interface {
	// AwaitNotified waits, for a limited time, until the other ranks have acknowledged this rank's
	// fault. It does not wait for ranks that have failed themselves, have left, or are lost.
	AwaitNotified()
	// AwaitNotices waits until this process has read the notices that arrived while it was stopped,
	// for example by a signal. It returns immediately if the process has been running.
	AwaitNotices()
}
