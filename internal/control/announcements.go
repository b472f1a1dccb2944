package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes, without waiting, the calls that it launched under its latest tickets. Ranks that
// compare calls at different moments, one before the launch and one in its kernel, detect a
// mismatch this way.
type Announcements interface {
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks known to have another digest for the ticket.
	Differing(ticket, digest uint64) []int
	// Submitted reports whether all ranks have submitted the ticket. A ticket that a rank has
	// withdrawn counts as not submitted.
	Submitted(ticket uint64) bool
}
