package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem"
)

// A run consists of cases. A case is an all-reduce of a buffer in a group of ranks, and its result
// is checked. Suppose that the value of a case is 5 in a group of three ranks. Their inputs are
// then 5, 10 and 15, and the right result is 30 on each rank.
//
// Each rank has a finding about the case. If rank 1 gets 20 instead of 30, the case fails, and rank
// 1 is one of its wrong ranks. If no rank is wrong, but the case did not run on some rank, the
// report counts it as not run.
//
// Ranks can also diverge: their allocations differ although they should be the same. A divergence
// or another error ends the run early.

// Report combines the results of all ranks.
type Report struct {
	Backend string `json:"backend"`
	Source  string `json:"source"` // see symmem.Runtime.Source
	Ranks   int    `json:"ranks"`  // number of ranks
	// Passed, Failed and NotRun count cases.
	Passed     int                     `json:"passed"`
	Failed     int                     `json:"failed"`
	NotRun     int                     `json:"not_run"`
	Norms      NormReport              `json:"norms"` // about collectives with an RMSNorm
	Cases      []Case                  `json:"cases"`
	Divergence *symmem.DivergenceError `json:"divergence"`      // nil unless it ended the run
	Fault      string                  `json:"fault,omitempty"` // other error that ended it, or ""

	Check         string `json:"check"`
	Placement     string `json:"placement"`
	RequestedPath string `json:"path"`          // the path (way to run a collective) in Config
	TakenPaths    string `json:"took"`          // paths that the cases took, such as "plain, window"
	PathReason    string `json:"why,omitempty"` // why some cases took another path, or ""

	Skew      bool    `json:"skew"`   // whether ranks made other allocations that differed
	Churn     int     `json:"churn"`  // number of random allocations and frees in each round
	Seed      uint64  `json:"seed"`   // of all random choices
	Rounds    int     `json:"rounds"` // how often the buffers were allocated and freed
	Groups    int     `json:"groups"` // number of groups; group 0 is the world, with all ranks
	ElapsedMS float64 `json:"elapsed_ms"`
	// Deterministic names the formula (the order of additions) that results had to match bit for
	// bit, or is "" if any order was right.
	Deterministic string `json:"deterministic,omitempty"`
}

// The results of a Case.
const (
	Passed   = "PASS"
	Failed   = "FAIL"
	Diverged = "DIVERGED" // not run because ranks diverged earlier
	NotRun   = "NOT RUN"
)

// Case holds the result of one case.
type Case struct {
	// Name is "round.case", such as "2.8". If the buffer was a random one, it is "round.churnN". N is
	// the number of random allocations and frees before the check.
	Name  string `json:"name"`
	Round int    `json:"round"` // counted from 1
	Group int    `json:"group"` // number of the group
	Churn bool   `json:"churn"` // whether the buffer was one of the random allocations
	Ranks []int  `json:"ranks"` // world ranks of the group
	Size  int64  `json:"size"`  // in elements
	// Value is each element of the input of the group's first rank. Expected is each element of the
	// right result. With a formula, elements are random, and both fields are 0.
	Value     float64 `json:"value"`
	Symmetric bool    `json:"symmetric"` // whether all ranks' buffers were in a window of the group
	Expected  float64 `json:"expected"`
	// MaxDiff and MeanDiff are the largest and the mean difference between elements of the result and
	// the right ones, each on the rank where it is largest.
	MaxDiff    float64 `json:"max_diff"`
	MeanDiff   float64 `json:"mean_diff"`
	WrongRanks []int   `json:"wrong_ranks,omitempty"` // ranks that found a wrong element
	Result     string  `json:"result"`                // one of the constants above
}

// OK reports whether all cases passed, no norm failed and the run did not end early.
func (r *Report) OK() bool {
	endedEarly := r.Divergence != nil || r.Fault != ""
	allPassed := r.Failed == 0 && r.NotRun == 0 && r.Norms.Failed == 0
	return allPassed && !endedEarly
}

// newReport returns a report that describes the run, but has no results.
func newReport(rt *symmem.Runtime, c *Config) Report {
	r := Report{
		Backend: rt.Device().Backend, Source: rt.Source(), Ranks: rt.Size(),
		Check: rt.Check().String(), Placement: c.Placement.String(),
		RequestedPath: c.Path.String(), Skew: c.Skew, Churn: c.Churn, Seed: c.Seed,
		Rounds: c.Rounds, Groups: c.Groups,
	}
	if c.Deterministic > symmem.FormulaAny {
		r.Deterministic = c.Deterministic.String()
	}

	return r
}

// mergeResults adds the results of ranks to a report without results.
func mergeResults(r Report, p *program, results []rankResult) *Report {
	r.recordEnd(results)
	r.recordPaths(results)
	r.Norms = normReport(results, r.Ranks)
	r.Cases = make([]Case, 0, len(p.cases))
	for i := range p.cases {
		c := newCase(&p.cases[i], i, r.Ranks, results)
		r.addCase(c)
	}

	return &r
}

// recordEnd sets Divergence or Fault if the run ended early on some rank.
func (r *Report) recordEnd(results []rankResult) {
	worst := mostSevere(results)
	switch worst.Outcome {
	case succeeded:
	case ranksDiverged:
		r.Divergence = worst.Divergence
	case groupAborted, rankLate, rankLost:
		r.Fault = worst.Text // needs no rank as a prefix
	case otherError:
		r.Fault = faultText(worst, results)
	}
}

// faultText returns the text of the error that ended the run. It names the rank with the error,
// unless there is only one rank or another rank has an error with the same text.
func faultText(worst *rankResult, results []rankResult) string {
	isSameOnOther := func(r rankResult) bool { return r.Rank != worst.Rank && r.Text == worst.Text }
	if len(results) == 1 || slices.ContainsFunc(results, isSameOnOther) {
		return worst.Text
	}

	return fmt.Sprintf("rank %d: %s", worst.Rank, worst.Text)
}

// recordPaths sets TakenPaths. If some cases took another path than the requested one, it sets
// PathReason to the reason for the first such path in alphabetical order.
func (r *Report) recordPaths(results []rankResult) {
	reasons := map[string]string{} // by the path that was taken; that of the first rank
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
	isAnyRequested := r.RequestedPath == symmem.PathAuto.String()
	if isAnyRequested {
		return
	}

	for _, path := range paths {
		isOther := path != r.RequestedPath
		if isOther && r.PathReason == "" {
			r.PathReason = reasons[path]
		}
	}
}

// addCase adds and counts a case. Call it after recordEnd.
func (r *Report) addCase(c Case) {
	switch c.Result {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	default:
		r.NotRun++
		if r.Divergence != nil {
			c.Result = Diverged
		}
	}

	r.Cases = append(r.Cases, c)
}

// newCase combines the findings about p, which is the case at index i of the program. ranks is the
// size of the world. Some ranks may have no entry in results.
func newCase(p *plannedCase, i, ranks int, results []rankResult) Case {
	c := Case{
		Name: p.name, Round: p.round, Group: p.group, Churn: p.isChurn,
		Ranks: membersOf(p.group, ranks), Size: p.elements, Value: p.value,
	}
	c.Expected = expectedSum(p.value, len(c.Ranks))
	memberCount := 0 // number of the group's ranks in results
	isCompleted := true
	isSymmetric := true
	for k := range results {
		rank := results[k].Rank
		if !isMember(p.group, rank, ranks) {
			continue
		}

		f := results[k].Findings[i]
		memberCount++
		isCompleted = isCompleted && f.Completed
		isSymmetric = isSymmetric && f.Symmetric
		c.MaxDiff = max(c.MaxDiff, f.MaxDiff)
		c.MeanDiff = max(c.MeanDiff, f.MeanDiff)
		if f.Wrong > 0 {
			c.WrongRanks = append(c.WrongRanks, rank)
		}
	}

	hasFindings := memberCount > 0
	c.Symmetric = isSymmetric && hasFindings
	switch {
	case len(c.WrongRanks) > 0:
		c.Result = Failed
	case isCompleted && hasFindings:
		c.Result = Passed
	default:
		c.Result = NotRun // on at least one rank of the group
	}

	return c
}
