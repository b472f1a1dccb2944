package agreement

// AgreedPrefix says that the first Position events of a ledger, with the given digest, are equal on
// all ranks that took part. The caller passes it to [ledger.Ledger.Agree].
type AgreedPrefix struct {
	Ledger, Position, Digest uint64
}

// Outcome ends an agreement. It is the same on every rank that got the same payloads.
type Outcome struct {
	// Agreed has one entry for each ledger, by id, if the ranks agreed.
	Agreed []AgreedPrefix
	// Flags are those of all ranks together. Where there are any, nothing was compared.
	Flags uint64
	// Absent are the ranks that did not take part in every round. The outcome is about the
	// others; whether it counts without them is for the caller to say.
	Absent []int
	// Divergence says where the ranks differ; nil if they agreed.
	Divergence *DivergenceError
}
