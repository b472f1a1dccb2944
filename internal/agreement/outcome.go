package agreement

// AgreedPrefix reports that the first Position events of a ledger, with the given digest, are equal
// on all ranks that took part. The caller passes it to [ledger.Ledger.Agree].
type AgreedPrefix struct {
	Ledger, Position, Digest uint64
}

// Outcome is the result of an agreement. It is the same on every rank that got the same payloads.
type Outcome struct {
	// Agreed has one entry per ledger, by id, if the ranks agreed.
	Agreed []AgreedPrefix
	// Flags combines the flags of all ranks. If any is set, nothing was compared.
	Flags uint64
	// Absent lists the ranks that did not take part in every round. The outcome is about the
	// others; the caller decides whether that is sufficient.
	Absent []int
	// Divergence describes the difference between the ranks, or is nil if they agreed.
	Divergence *DivergenceError
}
