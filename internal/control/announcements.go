package control

// Announcements is what a Plane can do in addition if its ranks are on one machine: it publishes
// what each rank has launched under its latest tickets, without a wait. So ranks that
// compare in different ways, one before its launch and one by its kernel, still find out that
// they differ.
type Announcements interface {
	// Announce publishes the digest of the call of a ticket of this rank.
	Announce(ticket, digest uint64)
	// Differing lists the group ranks that are known to have another digest under a ticket.
	Differing(ticket, digest uint64) []int
	// Submitted reports whether all ranks have submitted a ticket. What one has taken back since,
	// it had not.
	Submitted(ticket uint64) bool
}
