package random

// Tally counts the work and the results of one rank or, in a Report, of all ranks.
type Tally struct {
	Steps int64 `json:"steps"`
	// Calls is the number of checked calls, including replayed ones.
	Calls int64 `json:"calls"`
	// Norms is the number of fused norms among Calls.
	Norms   int64 `json:"norms"`
	Replays int64 `json:"replays"`
	Graphs  int64 `json:"graphs"`
	Groups  int64 `json:"groups"`
	Aborts  int64 `json:"aborts"`
	// Wrong is the number of wrong elements in results.
	Wrong int64 `json:"wrong"`
	// Bytes is the total size of the checked results.
	Bytes int64 `json:"bytes"`
	// Peak is the maximum size of a rank's mapped memory, measured at the end of rounds and before
	// pools are closed.
	Peak int64 `json:"peak_bytes"`
	// findings describes the first wrong results on this rank.
	findings []string
}

const maxFindings = 8

func (t *Tally) addFinding(finding string) {
	if len(t.findings) < maxFindings {
		t.findings = append(t.findings, finding)
	}
}

// roundResult holds the results that ranks exchange after a round.
type roundResult struct {
	// More is set if another round should follow, judging by this rank's clock.
	More bool
	Tally
}

// mergeTallies returns the tally of all ranks. Because all ranks make the same steps, it adds up
// only the results.
func mergeTallies(all []roundResult) Tally {
	t := all[0].Tally
	for _, other := range all[1:] {
		t.Wrong += other.Wrong
		t.Bytes += other.Bytes
	}
	return t
}
