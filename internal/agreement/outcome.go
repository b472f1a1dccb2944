package agreement

// AgreedPrefix describes the first events of a ledger that are the same on all ranks that took
// part. Position is the number of these events, and Digest is their digest. The caller passes
// both values to [ledger.Ledger.Agree].
type AgreedPrefix struct {
	Ledger, Position, Digest uint64
}

// Outcome describes the result of an agreement. Ranks that received the same payloads get the same
// Outcome.
type Outcome struct {
	// Agreed has one entry per ledger, ordered by ID, if the ranks agreed.
	Agreed []AgreedPrefix
	// Flags combines the flags of all ranks. If any flag is set, only tags were compared.
	Flags uint64
	// Absent lists the ranks that missed at least one round. The Outcome applies only to the other
	// ranks, and the caller decides whether that is enough.
	Absent []int
	// Divergence describes the difference between the ranks, or is nil if they agreed.
	Divergence *DivergenceError
}
