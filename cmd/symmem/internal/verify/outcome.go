package verify

import (
	"cmp"
	"errors"
	"slices"

	"symmem"
)

// outcome says how the run ended on a rank.
type outcome int

// The outcomes are in ascending order of severity: causes follow their effects. For example, when a
// rank is lost, other ranks are late, because they wait for it.
const (
	succeeded outcome = iota
	groupAborted
	rankLate
	otherError
	rankLost
	ranksDiverged
)

// rankResult holds the results of one rank. The ranks exchange them as JSON.
type rankResult struct {
	Rank       int                     `json:"rank"`
	Outcome    outcome                 `json:"outcome"`
	Text       string                  `json:"text"`       // of the error that ended the run, or ""
	Divergence *symmem.DivergenceError `json:"divergence"` // nil unless ranks diverged
	Findings   []finding               `json:"findings"`   // one for each case of the program
	Norms      normFindings            `json:"norms"`
	Paths      map[string]string       `json:"paths"` // reason for each path that was taken
}

// setOutcome sets the fields about err, the error that ended the run, or nil.
func (r *rankResult) setOutcome(err error) {
	r.Outcome = outcomeOf(err)
	if err == nil {
		return
	}

	r.Text = err.Error()
	if errors.As(err, &r.Divergence) { // sets r.Divergence
		r.Text = r.Divergence.Error() // without the texts of errors that wrap it
	}
}

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return succeeded
	case errors.As(err, new(*symmem.DivergenceError)):
		return ranksDiverged
	case errors.As(err, new(*symmem.RankLostError)):
		return rankLost
	case errors.As(err, new(*symmem.TimeoutError)):
		return rankLate
	case errors.Is(err, symmem.ErrAborted):
		return groupAborted
	}

	return otherError
}

// mostSevere returns the result with the most severe outcome, or the first of several.
func mostSevere(results []rankResult) *rankResult {
	worst := slices.MaxFunc(results, func(a, b rankResult) int {
		return cmp.Compare(a.Outcome, b.Outcome)
	})
	return &worst
}
