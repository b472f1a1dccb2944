package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes, without waiting, the calls that it launched under its latest tickets. Ranks then
// detect a mismatch even if one rank compares a call before the launch and another compares it in
// its kernel.
type Announcements interface {
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks known to have another digest for the ticket.
	Differing(ticket, digest uint64) []int
	// Submitted reports whether all ranks have submitted the ticket and none has withdrawn it.
	Submitted(ticket uint64) bool
}
