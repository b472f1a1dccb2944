package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem"
)

// Report combines the results of all ranks. A run checks cases, which are all-reduces in groups of
// ranks. A run ends early after an error, for example if ranks diverged (allocated differently).
type Report struct {
	Backend    string                  `json:"backend"`
	Source     string                  `json:"source"` // see symmem.Runtime.Source
	Ranks      int                     `json:"ranks"`
	Passed     int                     `json:"passed"`
	Failed     int                     `json:"failed"`
	NotRun     int                     `json:"not_run"` // including ResultDiverged
	Norms      NormReport              `json:"norms"`
	Cases      []Case                  `json:"cases"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	Fault      string                  `json:"fault,omitempty"` // other error that ended the run

	Check         string `json:"check"`
	Placement     string `json:"placement"`
	RequestedPath string `json:"path"`          // implementation of the all-reduce, from Config
	TakenPaths    string `json:"took"`          // such as "plain, window"
	PathReason    string `json:"why,omitempty"` // why a case did not take the requested path

	Skew          bool    `json:"skew"`
	Churn         int     `json:"churn"`
	Seed          uint64  `json:"seed"`
	Rounds        int     `json:"rounds"`
	Groups        int     `json:"groups"`
	ElapsedMS     float64 `json:"elapsed_ms"`              // duration of the run
	Deterministic string  `json:"deterministic,omitempty"` // "" if any order of additions was right
}

// The results of a Case.
const (
	ResultPassed   = "PASS"     // on all ranks of the group
	ResultFailed   = "FAIL"     // on at least one rank
	ResultDiverged = "DIVERGED" // not run, because ranks diverged
	ResultNotRun   = "NOT RUN"  // on at least one rank, because of another error
)

// Case holds the result of one case. Value and Expected are 0 if inputs are random.
type Case struct {
	// Name is "round.case", such as "2.8", or "round.churnN" after N random allocations and frees.
	Name       string  `json:"name"`
	Round      int     `json:"round"`                 // counted from 1
	Group      int     `json:"group"`                 // 0 is the world
	Churn      bool    `json:"churn"`                 // whether the buffer was allocated at random
	Ranks      []int   `json:"ranks"`                 // world ranks of the group
	Size       int64   `json:"size"`                  // in elements
	Value      float64 `json:"value"`                 // each element of the first rank's input
	Symmetric  bool    `json:"symmetric"`             // whether all ranks registered the buffer
	Expected   float64 `json:"expected"`              // each element of the right result
	MaxDiff    float64 `json:"max_diff"`              // largest error of an element
	MeanDiff   float64 `json:"mean_diff"`             // largest mean error of a rank
	WrongRanks []int   `json:"wrong_ranks,omitempty"` // ranks with a wrong element
	Result     string  `json:"result"`                // one of the constants above
}

// OK reports whether all cases passed, no norm failed and no error ended the run early.
func (r *Report) OK() bool {
	endedEarly := r.Divergence != nil || r.Fault != ""
	allPassed := r.Failed == 0 && r.NotRun == 0 && r.Norms.Failed == 0
	return allPassed && !endedEarly
}

func newReport(rt *symmem.Runtime, c *Config) Report {
	r := Report{
		Backend: rt.Device().Backend, Source: rt.Source(), Ranks: rt.Size(),
		Check: rt.Check().String(), Placement: c.Placement.String(),
		RequestedPath: c.Path.String(), Skew: c.Skew, Churn: c.Churn, Seed: c.Seed,
		Rounds: c.Rounds, Groups: c.Groups,
	}
	if c.hasFormula() {
		r.Deterministic = c.Deterministic.String()
	}

	return r
}

// mergeResults adds the results of all ranks to r, a new report.
func mergeResults(r Report, p *program, results []rankResult) *Report {
	r.recordError(results) // addCase reads Divergence
	r.recordPaths(results)
	r.Norms = normReport(results, r.Ranks)
	r.Cases = make([]Case, 0, len(p.cases))
	for i := range p.cases {
		c := newCase(&p.cases[i], i, r.Ranks, results)
		r.addCase(c)
	}

	return &r
}

// recordError sets Divergence or Fault if the run ended early on some rank.
func (r *Report) recordError(results []rankResult) {
	worst := mostSevere(results)
	switch worst.Outcome {
	case succeeded:
	case ranksDiverged:
		r.Divergence = worst.Divergence
	case groupAborted, rankLate, rankLost:
		r.Fault = worst.Text
	case otherError:
		r.Fault = describeOtherError(worst, results)
	}
}

// describeOtherError returns the text of worst, with its rank if other ranks have results, but none
// has the same text.
func describeOtherError(worst *rankResult, results []rankResult) string {
	isShared := slices.ContainsFunc(results, func(r rankResult) bool {
		return r.Rank != worst.Rank && r.Text == worst.Text
	})
	needsRank := len(results) > 1 && !isShared
	if needsRank {
		return fmt.Sprintf("rank %d: %s", worst.Rank, worst.Text)
	}

	return worst.Text
}

// recordPaths sets TakenPaths, and PathReason if a case took another path than requested.
func (r *Report) recordPaths(results []rankResult) {
	reasons := map[string]string{} // by path
	for i := range results {
		for path, reason := range results[i].Paths {
			_, isKnown := reasons[path]
			if !isKnown {
				reasons[path] = reason
			}
		}
	}

	paths := slices.Sorted(maps.Keys(reasons))
	r.TakenPaths = strings.Join(paths, ", ")
	if r.RequestedPath == symmem.PathAuto.String() { // permits all paths
		return
	}

	for _, path := range paths {
		if path != r.RequestedPath {
			r.PathReason = cmp.Or(r.PathReason, reasons[path])
		}
	}
}

// addCase adds and counts a case.
func (r *Report) addCase(c Case) {
	switch c.Result {
	case ResultPassed:
		r.Passed++
	case ResultFailed:
		r.Failed++
	case ResultNotRun:
		r.NotRun++
		if r.Divergence != nil {
			c.Result = ResultDiverged
		}
	}

	r.Cases = append(r.Cases, c)
}

// newCase combines the findings about a case. Some ranks may have no result.
func newCase(p *plannedCase, caseIndex, ranks int, results []rankResult) Case {
	c := Case{
		Name: p.name, Round: p.round, Group: p.group, Churn: p.isChurn,
		Ranks: membersOf(p.group, ranks), Size: p.elements, Value: p.value,
	}
	c.Expected = expectedSum(p.value, len(c.Ranks))
	hasFindings := false
	isCompleted := true
	isSymmetric := true
	for i := range results {
		rank := results[i].Rank
		if !isMember(p.group, rank, ranks) {
			continue
		}

		f := results[i].Findings[caseIndex]
		hasFindings = true
		isCompleted = isCompleted && f.Completed
		isSymmetric = isSymmetric && f.Symmetric
		c.MaxDiff = max(c.MaxDiff, f.MaxDiff)
		c.MeanDiff = max(c.MeanDiff, f.MeanDiff)
		if f.Wrong > 0 {
			c.WrongRanks = append(c.WrongRanks, rank)
		}
	}

	c.Symmetric = isSymmetric && hasFindings
	switch {
	case len(c.WrongRanks) > 0:
		c.Result = ResultFailed
	case isCompleted && hasFindings:
		c.Result = ResultPassed
	default: // no findings, or not completed on some rank
		c.Result = ResultNotRun
	}

	return c
}
