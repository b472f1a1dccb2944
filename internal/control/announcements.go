package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes digests of its latest collectives, so that others can compare calls without waiting.
type Announcements interface {
	// Submitted reports whether all ranks have submitted the collective with this ticket (its
	// number in the group) and none has withdrawn it. The result is never cached.
	Submitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks that have announced another digest.
	Differing(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane on which notices of faults take time to arrive.
type Notifier interface {
	// AwaitNotified waits, for a limited time, until the other ranks have acknowledged this rank's
	// fault.
	AwaitNotified()
	// CanSucceed reports whether a collective that has ended on this rank can have completed. If
	// another rank has reported a fault, or a lost rank had not submitted the ticket, it cannot.
	CanSucceed(ticket uint64) bool
}
