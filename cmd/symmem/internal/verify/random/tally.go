package random

// Tally counts the work and the results of one rank or, in a Report, of all ranks.
type Tally struct {
	Steps   int64 `json:"steps"`
	Calls   int64 `json:"calls"` // checked calls, including replayed ones
	Norms   int64 `json:"norms"` // among Calls
	Replays int64 `json:"replays"`
	Graphs  int64 `json:"graphs"`
	Groups  int64 `json:"groups"`
	Aborts  int64 `json:"aborts"`
	Wrong   int64 `json:"wrong"` // wrong elements in results
	Bytes   int64 `json:"bytes"` // total size of the checked results
	// PeakBytes is the maximum size of a rank's mapped memory.
	PeakBytes int64 `json:"peak_bytes"`

	findings []string // the first wrong results on this rank
}

const maxFindings = 8

func (t *Tally) addFinding(finding string) {
	if len(t.findings) < maxFindings {
		t.findings = append(t.findings, finding)
	}
}

// roundResult holds the results that ranks exchange after a round.
type roundResult struct {
	HasMoreRounds  bool // by this rank's clock
	HasFailed      bool // the round failed on this rank
	IsInconsistent bool // see Report
	Tally
}

// mergeTallies adds up the results of all ranks. The steps are the same on all ranks.
func mergeTallies(all []roundResult) Tally {
	t := all[0].Tally
	for _, other := range all[1:] {
		t.Wrong += other.Wrong
		t.Bytes += other.Bytes
	}

	return t
}
