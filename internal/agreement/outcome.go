package agreement

// AgreedPrefix describes the first events of a ledger, which all participating ranks share. See
// [ledger.Ledger.Agree].
type AgreedPrefix struct {
	Ledger, Position, Digest uint64
}

// Outcome is equal on ranks that got the same payloads.
type Outcome struct {
	// Agreed has one entry per ledger, by ID, if the ranks agreed.
	Agreed []AgreedPrefix
	// Flags combines all ranks' flags. If one is set, only tags were compared.
	Flags uint64
	// Absent lists the ranks that missed a round. The Outcome does not apply to them.
	Absent []int
	// Divergence is nil if the ranks agreed.
	Divergence *DivergenceError
}
