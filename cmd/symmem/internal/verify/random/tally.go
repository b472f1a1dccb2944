package random

// Tally counts what one rank has done and found; in a report, what all have.
type Tally struct {
	Steps int64 `json:"steps"`
	// Calls were checked; those in replays count, too.
	Calls   int64 `json:"calls"`
	Replays int64 `json:"replays"`
	Graphs  int64 `json:"graphs"`
	Groups  int64 `json:"groups"`
	Aborts  int64 `json:"aborts"`
	// Wrong is in elements; Bytes are those of results that were checked.
	Wrong int64 `json:"wrong"`
	Bytes int64 `json:"bytes"`
	// Peak is the most that the pools of a rank had mapped at the end of a round or of a pool.
	Peak int64 `json:"peak_bytes"`
	// findings describes the first wrong results.
	findings []string
}

// maxFindings is how many are described: the first ones say most.
const maxFindings = 8

func (t *Tally) note(finding string) {
	if len(t.findings) < maxFindings {
		t.findings = append(t.findings, finding)
	}
}

// ended is what a rank tells the others after a round.
type ended struct {
	// More is whether another round comes, by the clock of this rank.
	More bool
	Tally
}

// merged is the tally of all ranks: they do the same, so that only what each finds adds up.
func merged(all []ended) Tally {
	t := all[0].Tally
	for _, other := range all[1:] {
		t.Wrong += other.Wrong
		t.Bytes += other.Bytes
	}
	return t
}
