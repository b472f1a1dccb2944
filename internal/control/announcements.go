package control

// Announcements is an optional interface of a Plane whose ranks are on one machine. Each rank
// publishes, without waiting, the calls that it launched under its latest tickets. One rank may
// compare a call before the launch while another compares it in its kernel. With announcements they
// still detect a mismatch.
type Announcements interface {
	// Announce publishes the digest of this rank's call with the given ticket.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks known to have another digest for the ticket.
	Differing(ticket, digest uint64) []int
	// Submitted reports whether all ranks have submitted the ticket. A ticket that a rank has
	// withdrawn counts as not submitted.
	Submitted(ticket uint64) bool
}
