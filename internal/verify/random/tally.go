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

// numbers are what ranks tell each other.
func (t *Tally) numbers() []int64 {
	return []int64{t.Steps, t.Calls, t.Replays, t.Graphs, t.Groups, t.Aborts, t.Wrong, t.Bytes, t.Peak}
}

// merged is the tally of all ranks: they do the same, so that only what each finds adds up.
func merged(all [][]int64) Tally {
	first := all[0]
	t := Tally{
		Steps: first[0], Calls: first[1], Replays: first[2], Graphs: first[3], Groups: first[4],
		Aborts: first[5], Peak: first[8],
	}
	for _, numbers := range all {
		t.Wrong += numbers[6]
		t.Bytes += numbers[7]
	}
	return t
}
