package random

// tally counts what one rank has done and found.
type tally struct {
	steps, calls, replays, graphs, groups, aborts int64
	// wrong is in elements; bytes are those of results that were checked; peak is the most that the
	// pools of a world had mapped at the end of a round or of a pool.
	wrong, bytes, peak int64
	// findings describes the first wrong results.
	findings []string
}

// maxFindings is how many are described: the first ones say most.
const maxFindings = 8

func (t *tally) note(finding string) {
	if len(t.findings) < maxFindings {
		t.findings = append(t.findings, finding)
	}
}

// numbers are what ranks tell each other.
func (t *tally) numbers() []int64 {
	return []int64{t.steps, t.calls, t.replays, t.graphs, t.groups, t.aborts, t.wrong, t.bytes, t.peak}
}

// merged is the tally of all ranks: they do the same, so that only what each finds adds up.
func merged(all [][]int64) tally {
	first := all[0]
	t := tally{
		steps: first[0], calls: first[1], replays: first[2], graphs: first[3], groups: first[4],
		aborts: first[5], peak: first[8],
	}
	for _, numbers := range all {
		t.wrong += numbers[6]
		t.bytes += numbers[7]
	}
	return t
}
