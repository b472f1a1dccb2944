package agreement

// AgreedPrefix describes the first events of a ledger that are the same on all ranks that took
// part, by their number and their digest. See [ledger.Ledger.Agree].
type AgreedPrefix struct {
	Ledger, Position, Digest uint64
}

// Outcome is the result of an agreement. Ranks that received the same payloads get the same
// Outcome.
type Outcome struct {
	// Agreed has one entry per ledger, ordered by ID, if the ranks agreed.
	Agreed []AgreedPrefix
	// Flags combines the flags of all ranks. If any is set, only tags were compared.
	Flags uint64
	// Absent lists the ranks that missed at least one round. The Outcome applies only to the
	// others.
	Absent []int
	// Divergence is nil if the ranks agreed.
	Divergence *DivergenceError
}
