package control

// Announcements is an optional interface of a Plane on one machine. Ranks publish digests (hashes)
// of their latest collectives, so that others can compare calls without waiting.
type Announcements interface {
	// AllSubmitted reports whether all ranks have submitted a ticket (number of a collective) and
	// none has withdrawn it. The result is never cached.
	AllSubmitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call.
	Announce(ticket, digest uint64)
	// DifferingRanks lists the group ranks that have announced another digest.
	DifferingRanks(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane on which notices of faults take time to arrive.
type Notifier interface {
	// WaitForAcknowledgements waits, for a limited time, until the other ranks know of this rank's
	// fault.
	WaitForAcknowledgements()
	// CanSucceed reports whether a collective that has ended on this rank can have completed: no
	// other rank has reported a fault, and every lost rank had submitted the ticket.
	CanSucceed(ticket uint64) bool
}
