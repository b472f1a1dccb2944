package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes, without waiting, the calls that it launched under its latest tickets. One rank may
// compare a call before the launch while another compares it in its kernel. With announcements they
// still detect a mismatch.
type Announcements interface {
	// Submitted reports whether all ranks have submitted the ticket. A ticket that a rank has
	// withdrawn counts as not submitted. The answer is never out of date.
	Submitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks known to have another digest for the ticket.
	Differing(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane on which the notice of a fault takes time to reach
// the other ranks.
type Notifier interface {
	// AwaitNotified waits until the other ranks have acknowledged this rank's fault, or for a limited
	// time. It does not wait for ranks that have failed themselves, have left, or are lost.
	AwaitNotified()
	// AwaitNotices waits until this process has read the notices that arrived while it was stopped,
	// for example by a signal. It returns at once if the process has been running.
	AwaitNotices()
}
