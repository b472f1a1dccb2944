package random

import (
	"fmt"
	"io"

	"symmem"
	"symmem/internal/ranklist"
)

// Report holds the results of a run. Only Findings differ between ranks.
type Report struct {
	Backend    string `json:"backend"`
	Ranks      int    `json:"ranks"`
	Seed       uint64 `json:"seed"`
	FirstRound int    `json:"from_round"`
	// Rounds is the number of completed rounds.
	Rounds int `json:"rounds"`
	Tally
	ElapsedMS float64 `json:"elapsed_ms"`
	// Resources is empty if there were no rounds after the warm-up.
	Resources []Resource `json:"resources"`
	// Findings describes the first wrong results on this rank.
	Findings []string `json:"findings"`
	// FailedRound is the number of the round that failed with an error, or 0.
	FailedRound int `json:"broke_off_round"`
	// Differs is set if ranks diverged, or if memory was in use after all buffers had been freed.
	Differs bool `json:"differs"`
	// FirstWrongRound is the number of the round with the first wrong result, or 0.
	FirstWrongRound int `json:"first_wrong_round"`
}

func newReport(rt *symmem.Runtime, c *Config) *Report {
	return &Report{
		Backend: rt.Device().Backend, Ranks: rt.Size(), Seed: c.Seed, FirstRound: c.FirstRound,
		Resources: []Resource{}, Findings: []string{},
	}
}

// Leaks returns the leaked resources.
func (r *Report) Leaks() []Resource {
	var leaks []Resource
	for _, resource := range r.Resources {
		if resource.Leaked() {
			leaks = append(leaks, resource)
		}
	}
	return leaks
}

// OK reports whether all results were right, ranks did not diverge, and no resource leaked.
func (r *Report) OK() bool { return r.Wrong == 0 && !r.Differs && len(r.Leaks()) == 0 }

// WriteText writes the report as text. It lists all resources of rank 0 and the leaked resources of
// the other ranks.
func (r *Report) WriteText(w io.Writer) error {
	count := ranklist.Plural[int64]
	text := fmt.Sprintf("%s from %d, seed %d, %s, backend %s, %.1f s\n"+
		"%s, %s, %s, %s of %s, %s, %s, %s checked, %s mapped at most\n",
		count(int64(r.Rounds), "round"), r.FirstRound, r.Seed, count(int64(r.Ranks), "rank"), r.Backend,
		r.ElapsedMS/1000, count(r.Steps, "step"), count(r.Calls, "checked call"),
		count(r.Norms, "norm"),
		count(r.Replays, "replay"), count(r.Graphs, "graph"), count(r.Groups, "group"),
		count(r.Aborts, "abort"), bytesText(r.Bytes), bytesText(r.PeakBytes))
	for _, resource := range r.Resources {
		if resource.Rank == 0 || resource.Leaked() {
			text += resource.String() + "\n"
		}
	}
	text += r.conclusion() + "\n"
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// String formats the resource in one line.
func (r Resource) String() string {
	verdict := "released"
	if r.Leaked() {
		verdict = "LOST"
	}
	return fmt.Sprintf("rank %d, %s: %d at the start, %d at the end, tolerance %d: %s", r.Rank, r.Name,
		r.Start, r.End, r.Tolerance, verdict)
}

func (r *Report) conclusion() string {
	resourceText := "all resources were released"
	switch n := len(r.Leaks()); {
	case r.Differs:
		resourceText = fmt.Sprintf("and in round %d ranks differ", r.FailedRound)
	case r.FailedRound > 0:
		resourceText = fmt.Sprintf("but round %d failed", r.FailedRound)
	case len(r.Resources) == 0:
		resourceText = "too few rounds to compare resources"
	case n > 0:
		resourceText = "lost: " + ranklist.Plural(n, "resource")
	}
	if r.Wrong == 0 {
		return "no wrong element, " + resourceText
	}
	return fmt.Sprintf("%s, the first in round %d, %s", ranklist.Plural(r.Wrong, "wrong element"),
		r.FirstWrongRound, resourceText)
}

func bytesText(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
