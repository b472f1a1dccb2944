package random

import (
	"fmt"
	"io"

	"symmem"
	"symmem/internal/ranklist"
)

// Report holds the results of a run. Only Findings and ElapsedMS differ between ranks.
type Report struct {
	Backend     string     `json:"backend"`
	Ranks       int        `json:"ranks"`
	Seed        uint64     `json:"seed"`
	FirstRound  int        `json:"from_round"`
	Rounds      int        `json:"rounds"` // completed
	Tally                  // of all ranks, see mergeTallies
	ElapsedMS   float64    `json:"elapsed_ms"`
	Resources   []Resource `json:"resources"`       // of all ranks; empty if they were not compared
	Findings    []string   `json:"findings"`        // the first wrong results on this rank
	FailedRound int        `json:"broke_off_round"` // the round that failed on a rank, or 0
	// IsInconsistent is set if ranks diverged or memory was in use at the end of a round.
	IsInconsistent  bool `json:"differs"`
	FirstWrongRound int  `json:"first_wrong_round"` // the round with wrong elements, or 0
}

func newReport(rt *symmem.Runtime, c *Config) *Report {
	return &Report{
		Backend: rt.Device().Backend, Ranks: rt.Size(), Seed: c.Seed, FirstRound: c.FirstRound,
		Resources: []Resource{}, Findings: []string{},
	}
}

// Tally counts work and results, since the start of the run.
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
	IsInconsistent bool // as in Report
	Tally
}

// mergeTallies sums Wrong and Bytes over all ranks. The other counts are those of rank 0.
func mergeTallies(all []roundResult) Tally {
	t := all[0].Tally
	for _, other := range all[1:] {
		t.Wrong += other.Wrong
		t.Bytes += other.Bytes
	}

	return t
}

// addFailure adds the results of all ranks in a failed round, and the findings of this rank.
func (r *Report) addFailure(round int, results []roundResult, findings []string) {
	r.FailedRound = round
	r.Findings = append(r.Findings, findings...)
	r.Wrong = 0 // each result.Wrong includes earlier rounds
	for _, result := range results {
		r.Wrong += result.Wrong
		r.IsInconsistent = r.IsInconsistent || result.IsInconsistent
	}

	if r.Wrong > 0 {
		r.FirstWrongRound = round
	}
}

// Leaks returns the resources whose usage grew by more than their tolerance.
func (r *Report) Leaks() []Resource {
	var leaks []Resource
	for _, resource := range r.Resources {
		if resource.Leaked() {
			leaks = append(leaks, resource)
		}
	}

	return leaks
}

// OK reports whether the run found no wrong element, no inconsistency and no leak. It ignores other
// errors of a failed round, which Run returns.
func (r *Report) OK() bool { return r.Wrong == 0 && !r.IsInconsistent && len(r.Leaks()) == 0 }

// WriteText writes the report as text. It lists all resources of rank 0, and leaks of other ranks.
func (r *Report) WriteText(w io.Writer) error {
	plural := ranklist.Plural[int64]
	text := fmt.Sprintf("%s from round %d, seed %d, %s, backend %s, %.1f s\n",
		plural(int64(r.Rounds), "round"), r.FirstRound, r.Seed, plural(int64(r.Ranks), "rank"),
		r.Backend, r.ElapsedMS/1000)
	text += fmt.Sprintf("%s, %s, %s, %s of %s, %s, %s, %s checked, peak memory %s\n",
		plural(r.Steps, "step"), plural(r.Calls, "checked call"), plural(r.Norms, "norm"),
		plural(r.Replays, "replay"), plural(r.Graphs, "graph"), plural(r.Groups, "group"),
		plural(r.Aborts, "abort"), bytesText(r.Bytes), bytesText(r.PeakBytes))
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

// conclusion returns the last line of the text, such as "no wrong elements, 1 resource leaked".
func (r *Report) conclusion() string {
	if r.Wrong == 0 {
		return "no wrong elements, " + r.ending()
	}

	return fmt.Sprintf("%s, the first in round %d, %s", ranklist.Plural(r.Wrong, "wrong element"),
		r.FirstWrongRound, r.ending())
}

// ending describes the failed round, if any, or the leaks.
func (r *Report) ending() string {
	leakCount := len(r.Leaks())
	switch {
	case r.IsInconsistent:
		return fmt.Sprintf("but ranks diverged, or memory was in use, in round %d", r.FailedRound)
	case r.FailedRound > 0:
		return fmt.Sprintf("but round %d failed", r.FailedRound)
	case len(r.Resources) == 0:
		return "too few rounds to compare resources"
	case leakCount > 0:
		return ranklist.Plural(leakCount, "resource") + " leaked"
	}

	return "all resources were released"
}

// bytesText formats a number of bytes, such as "1.5 MiB".
func bytesText(n int64) string {
	const bytesPerMiB = 1 << 20
	return fmt.Sprintf("%.1f MiB", float64(n)/bytesPerMiB)
}
