package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem"
)

// Report combines the results of all ranks. The run consists of cases, which are all-reduces of one
// buffer each, and of norms.
type Report struct {
	Backend string `json:"backend"`
	Source  string `json:"source"` // see symmem.Runtime.Source
	Ranks   int    `json:"ranks"`  // number of ranks
	// Passed, Failed and NotRun count cases.
	Passed     int                     `json:"passed"`
	Failed     int                     `json:"failed"`
	NotRun     int                     `json:"not_run"`
	Norms      NormReport              `json:"norms"`
	Cases      []Case                  `json:"cases"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	// Fault is the text of the error that ended the run early, or "". If the error is a divergence,
	// it is in Divergence instead.
	Fault string `json:"fault,omitempty"`

	Check         string `json:"check"`
	Placement     string `json:"placement"`
	RequestedPath string `json:"path"`          // the configured path
	TakenPaths    string `json:"took"`          // paths that the cases took, such as "plain, window"
	PathReason    string `json:"why,omitempty"` // why some cases took another path, or ""

	Skew      bool    `json:"skew"`   // whether allocations differed between ranks
	Churn     int     `json:"churn"`  // random allocations and frees in each round
	Seed      uint64  `json:"seed"`   // of all random choices
	Rounds    int     `json:"rounds"` // how often the buffers were allocated and freed
	Groups    int     `json:"groups"` // number of groups, including the world
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

// Case holds the result of one all-reduce.
type Case struct {
	// Name is "round.case" or, for a block that was checked after N random allocations and frees,
	// "round.churnN".
	Name  string `json:"name"`
	Round int    `json:"round"` // counted from 1
	Group int    `json:"group"` // 0 is the world
	Churn bool   `json:"churn"` // whether the buffer was one of the random allocations
	Ranks []int  `json:"ranks"` // world ranks of the group
	Size  int64  `json:"size"`  // in elements
	// Value is each element of the input of rank 0, and Expected is each element of the right result.
	// With a formula, elements are random, and both are 0.
	Value     float64 `json:"value"`
	Symmetric bool    `json:"symmetric"` // whether all buffers were in a window of the group
	Expected  float64 `json:"expected"`
	// MaxDiff and MeanDiff are the largest and the mean distance of an element from Expected, on the
	// rank where they are largest.
	MaxDiff    float64 `json:"max_diff"`
	MeanDiff   float64 `json:"mean_diff"`
	WrongRanks []int   `json:"wrong_ranks,omitempty"` // ranks that found a wrong element
	Result     string  `json:"result"`                // one of the constants above
}

// OK reports whether every case passed and the run did not end early.
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
	worst := mostSevere(results)
	notRunResult := NotRun
	switch worst.Outcome {
	case succeeded:
		r.Fault = ""
	case ranksDiverged:
		notRunResult = Diverged
		r.Divergence = worst.Divergence
	case groupAborted, rankLate, rankLost:
		r.Fault = worst.Text // needs no prefix with the rank
	case otherError:
		r.Fault = faultText(worst, results)
	}

	r.recordPaths(results)
	r.Norms = normReport(results, r.Ranks)
	r.Cases = make([]Case, 0, len(p.cases))
	for i := range p.cases {
		c := newCase(&p.cases[i], i, r.Ranks, results)
		r.addCase(c, notRunResult)
	}

	return &r
}

// recordPaths sets TakenPaths. If cases took a path other than the requested one, it also sets
// PathReason.
func (r *Report) recordPaths(results []rankResult) {
	reasons := map[string]string{} // by the path that was taken
	for i := range results {
		for path, reason := range results[i].Paths {
			_, isKnown := reasons[path]
			if !isKnown {
				reasons[path] = reason
			}
		}
	}

	names := slices.Sorted(maps.Keys(reasons))
	r.TakenPaths = strings.Join(names, ", ")
	if r.RequestedPath == symmem.PathAuto.String() {
		return // any path is as requested
	}

	for _, name := range names {
		if name != r.RequestedPath && r.PathReason == "" {
			r.PathReason = reasons[name]
		}
	}
}

// faultText returns the text of the error that ended the run. It names the rank, unless several
// ranks have the same text.
func faultText(worst *rankResult, results []rankResult) string {
	isSameOnOther := func(r rankResult) bool { return r.Rank != worst.Rank && r.Text == worst.Text }
	if len(results) == 1 || slices.ContainsFunc(results, isSameOnOther) {
		return worst.Text
	}

	return fmt.Sprintf("rank %d: %s", worst.Rank, worst.Text)
}

// addCase adds and counts a case. notRunResult is the Result of a case that did not run.
func (r *Report) addCase(c Case, notRunResult string) {
	switch c.Result {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	default:
		c.Result = notRunResult
		r.NotRun++
	}

	r.Cases = append(r.Cases, c)
}

// newCase combines the findings of all ranks about p, which is the case at index i of the
// program. ranks is the size of the world. results need not contain all ranks.
func newCase(p *plannedCase, i, ranks int, results []rankResult) Case {
	c := Case{
		Name: p.name, Round: p.round, Group: p.group, Churn: p.isChurn,
		Ranks: membersOf(p.group, ranks), Size: p.elements, Value: p.value,
	}
	c.Expected = expectedSum(p.value, len(c.Ranks))
	memberCount := 0 // ranks of the group that have a result
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

	c.Symmetric = isSymmetric && memberCount > 0
	switch {
	case len(c.WrongRanks) > 0:
		c.Result = Failed
	case isCompleted && memberCount > 0:
		c.Result = Passed
	default:
		c.Result = NotRun // on at least one rank of the group
	}

	return c
}
