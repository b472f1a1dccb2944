package random

// Tally counts the work and results of one rank or, in a report, of all ranks.
type Tally struct {
	Steps int64 `json:"steps"`
	// Calls is the number of checked calls, including replayed ones.
	Calls   int64 `json:"calls"`
	Replays int64 `json:"replays"`
	Graphs  int64 `json:"graphs"`
	Groups  int64 `json:"groups"`
	Aborts  int64 `json:"aborts"`
	// Wrong is the number of wrong elements, Bytes the size of all checked results.
	Wrong int64 `json:"wrong"`
	Bytes int64 `json:"bytes"`
	// Peak is the maximum of a rank's mapped memory, measured when rounds end and pools close.
	Peak int64 `json:"peak_bytes"`
	// findings describes the first wrong results.
	findings []string
}

// maxFindings bounds the number of findings.
const maxFindings = 8

// note adds a finding.
func (t *Tally) note(finding string) {
	if len(t.findings) < maxFindings {
		t.findings = append(t.findings, finding)
	}
}

// ended holds the results that ranks exchange after a round.
type ended struct {
	// More reports whether another round follows, by the clock of this rank.
	More bool
	Tally
}

// merged returns the tally of all ranks. They make the same steps, so only their results are
// added.
func merged(all []ended) Tally {
	t := all[0].Tally
	for _, other := range all[1:] {
		t.Wrong += other.Wrong
		t.Bytes += other.Bytes
	}
	return t
}
