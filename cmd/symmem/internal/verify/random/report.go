package random

import (
	"fmt"
	"io"

	"symmem"
	"symmem/internal/ranklist"
)

// Report holds the results of a run. Only Findings differ between ranks.
type Report struct {
	Backend string `json:"backend"`
	Ranks   int    `json:"ranks"`
	Seed    uint64 `json:"seed"`
	// From is the number of the first round.
	From int `json:"from_round"`
	// Rounds is the number of completed rounds.
	Rounds int `json:"rounds"`
	// Tally counts the steps, which are the same on all ranks, and sums up the results of all
	// ranks.
	Tally
	ElapsedMS float64 `json:"elapsed_ms"`
	// Resources is empty if there were no rounds after the warm-up.
	Resources []Resource `json:"resources"`
	// Findings describes the first wrong results on this rank.
	Findings []string `json:"findings"`
	// Broke is the number of the round that failed with an error, or 0.
	Broke int `json:"broke_off_round"`
	// Differs is set if ranks diverged, or if memory was in use after all buffers had been freed.
	Differs bool `json:"differs"`
	// FirstWrong is the number of the round with the first wrong result, or 0.
	FirstWrong int `json:"first_wrong_round"`
}

func newReport(rt *symmem.Runtime, c *Config) *Report {
	return &Report{
		Backend: rt.Device().Backend, Ranks: rt.Size(), Seed: c.Seed, From: c.From,
		Resources: []Resource{}, Findings: []string{},
	}
}

// Lost returns the resources whose usage has grown by more than their tolerance.
func (r *Report) Lost() []Resource {
	var lost []Resource
	for _, resource := range r.Resources {
		if resource.Lost() {
			lost = append(lost, resource)
		}
	}
	return lost
}

// OK reports whether all results were right, ranks did not diverge, and all resources were
// released.
func (r *Report) OK() bool { return r.Wrong == 0 && !r.Differs && len(r.Lost()) == 0 }

// WriteText writes the report as text. It lists all resources of rank 0 and the lost resources of
// the other ranks.
func (r *Report) WriteText(w io.Writer) error {
	count := ranklist.Plural[int64]
	text := fmt.Sprintf("%s from %d, seed %d, %s, backend %s, %.1f s\n"+
		"%s, %s, %s, %s of %s, %s, %s, %s checked, %s mapped at most\n",
		count(int64(r.Rounds), "round"), r.From, r.Seed, count(int64(r.Ranks), "rank"), r.Backend,
		r.ElapsedMS/1000, count(r.Steps, "step"), count(r.Calls, "checked call"),
		count(r.Norms, "norm"),
		count(r.Replays, "replay"), count(r.Graphs, "graph"), count(r.Groups, "group"),
		count(r.Aborts, "abort"), bytesText(r.Bytes), bytesText(r.Peak))
	for _, resource := range r.Resources {
		if resource.Rank == 0 || resource.Lost() {
			text += resource.String() + "\n"
		}
	}
	text += r.verdict() + "\n"
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// String formats the resource in one line.
func (r Resource) String() string {
	verdict := "released"
	if r.Lost() {
		verdict = "LOST"
	}
	return fmt.Sprintf("rank %d, %s: %d at the start, %d at the end, tolerance %d: %s", r.Rank, r.Name,
		r.Start, r.End, r.Tolerance, verdict)
}

func (r *Report) verdict() string {
	suffix := "all resources were released"
	switch n := len(r.Lost()); {
	case r.Differs:
		suffix = fmt.Sprintf("and in round %d ranks differ", r.Broke)
	case r.Broke > 0:
		suffix = fmt.Sprintf("but round %d failed", r.Broke)
	case len(r.Resources) == 0:
		suffix = "too few rounds to compare resources"
	case n > 0:
		suffix = "lost: " + ranklist.Plural(n, "resource")
	}
	if r.Wrong == 0 {
		return "no wrong element, " + suffix
	}
	return fmt.Sprintf("%s, the first in round %d, %s", ranklist.Plural(r.Wrong, "wrong element"),
		r.FirstWrong, suffix)
}

func bytesText(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
