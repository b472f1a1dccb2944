package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem"
)

// Report combines the results of all ranks.
type Report struct {
	Backend string `json:"backend"`
	Source  string `json:"source"`
	Ranks   int    `json:"ranks"`
	// Passed and Failed count the cases whose all-reduce completed.
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// NotRun counts the cases whose all-reduce did not complete.
	NotRun int `json:"not_run"`
	// Norms counts the fused norms, which Cases does not contain.
	Norms NormReport `json:"norms"`
	// Cases lists the all-reduces in order.
	Cases []Case `json:"cases"`
	// Divergence describes the difference between ranks, or is nil.
	Divergence *symmem.DivergenceError `json:"divergence"`
	// Fault is the error that ended the run early, or "". If the error was a divergence, only
	// Divergence is set.
	Fault string `json:"fault,omitempty"`

	Check     string `json:"check"`
	Placement string `json:"placement"`
	// Path is the requested path.
	Path string `json:"path"`
	// Took lists the paths that the cases took, such as "plain, window".
	Took string `json:"took"`
	// Why is the reason why a path in Took differs from Path, or "".
	Why       string  `json:"why,omitempty"`
	Skew      bool    `json:"skew"`
	Churn     int     `json:"churn"`
	Seed      uint64  `json:"seed"`
	Rounds    int     `json:"rounds"`
	Groups    int     `json:"groups"`
	ElapsedMS float64 `json:"elapsed_ms"`
	// Deterministic is the formula that results had to match bit for bit, or "".
	Deterministic string `json:"deterministic,omitempty"`
}

// The results of a Case.
const (
	Passed   = "PASS"
	Failed   = "FAIL"
	Diverged = "DIVERGED" // not run because ranks diverged earlier
	NotRun   = "NOT RUN"
)

// Case holds the result of one all-reduce.
type Case struct {
	// Name is "round.case" or, for a block that was checked after N steps of churn, "round.churnN".
	// If a formula is configured, the reduction and the type follow.
	Name string `json:"name"`
	// Round is counted from 1. Group is counted from 0, and group 0 is the world.
	Round int  `json:"round"`
	Group int  `json:"group"`
	Churn bool `json:"churn"`
	// Ranks lists the world ranks of the group.
	Ranks []int `json:"ranks"`
	// Size is the number of elements.
	Size  int64   `json:"size"`
	Value float64 `json:"value"`
	// Symmetric reports whether the buffer was in a window of the group on every rank.
	Symmetric bool    `json:"symmetric"`
	Expected  float64 `json:"expected"`
	// MaxDiff and MeanDiff are the largest values that any rank found.
	MaxDiff  float64 `json:"max_diff"`
	MeanDiff float64 `json:"mean_diff"`
	// WrongRanks lists the ranks that found a wrong element.
	WrongRanks []int  `json:"wrong_ranks,omitempty"`
	Result     string `json:"result"`
}

// OK reports whether every case passed and the run did not end early.
func (r *Report) OK() bool {
	return r.Failed == 0 && r.NotRun == 0 && r.Norms.Failed == 0 && r.Divergence == nil &&
		r.Fault == ""
}

func newReport(rt *symmem.Runtime, c *Config) Report {
	r := Report{
		Backend: rt.Device().Backend, Source: rt.Source(), Ranks: rt.Size(),
		Check: rt.Check().String(), Placement: c.Placement.String(), Path: c.Path.String(),
		Skew:  c.Skew,
		Churn: c.Churn, Seed: c.Seed, Rounds: c.Rounds, Groups: c.Groups,
	}
	if c.Deterministic > symmem.FormulaAny {
		r.Deterministic = c.Deterministic.String()
	}
	return r
}

// merge combines the results of the ranks. The report depends only on the arguments, so that all
// ranks get the same one.
func merge(r Report, p *program, results []rankResult) *Report {
	worst := mostSevere(results)
	missing := NotRun
	switch worst.Outcome {
	case ranksDiverged:
		missing = Diverged
		r.Divergence = worst.Divergence
	case succeeded, groupAborted, rankLate, rankLost:
		r.Fault = worst.Text
	case otherError:
		r.Fault = faultText(worst, results)
	}
	r.recordPaths(results)
	r.Norms = normReport(results, r.Ranks)
	r.Cases = make([]Case, 0, len(p.rows))
	for i := range p.rows {
		r.add(caseOf(&p.rows[i], i, r.Ranks, results), missing)
	}
	return &r
}

func (r *Report) recordPaths(results []rankResult) {
	all := map[string]string{}
	for i := range results {
		for path, why := range results[i].Paths {
			if _, known := all[path]; !known {
				all[path] = why
			}
		}
	}
	names := slices.Sorted(maps.Keys(all))
	r.Took = strings.Join(names, ", ")
	for _, name := range names {
		if name != r.Path && r.Path != symmem.PathAuto.String() && r.Why == "" {
			r.Why = all[name]
		}
	}
}

// faultText returns the text of the error that ended the run. If only one of several ranks had
// the error, the text begins with the rank.
func faultText(worst *rankResult, results []rankResult) string {
	sameText := func(a rankResult) bool { return a.Rank != worst.Rank && a.Text == worst.Text }
	if len(results) == 1 || slices.ContainsFunc(results, sameText) {
		return worst.Text
	}
	return fmt.Sprintf("rank %d: %s", worst.Rank, worst.Text)
}

func (r *Report) add(c Case, missing string) {
	switch c.Result {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	default:
		c.Result = missing
		r.NotRun++
	}
	r.Cases = append(r.Cases, c)
}

// caseOf combines the findings for row i. If a rank did not complete the all-reduce, the case
// counts as not run, unless another rank found a wrong element.
func caseOf(w *row, i, ranks int, results []rankResult) Case {
	c := Case{
		Name: w.name, Round: w.round, Group: w.group, Churn: w.churn,
		Ranks: membersOf(w.group, ranks), Size: w.elements, Value: w.value,
	}
	c.Expected = expected(w.value, len(c.Ranks))
	hasMember, finished, symmetric := false, true, true
	for a := range results {
		if !inGroup(w.group, results[a].Rank, ranks) {
			continue
		}
		f := results[a].Findings[i]
		hasMember, finished, symmetric = true, finished && f.Ran, symmetric && f.Symmetric
		c.MaxDiff, c.MeanDiff = max(c.MaxDiff, f.MaxDiff), max(c.MeanDiff, f.MeanDiff)
		if f.Wrong > 0 {
			c.WrongRanks = append(c.WrongRanks, results[a].Rank)
		}
	}
	c.Symmetric = hasMember && symmetric
	switch {
	case len(c.WrongRanks) > 0:
		c.Result = Failed
	case hasMember && finished:
		c.Result = Passed
	default:
		c.Result = NotRun
	}
	return c
}
