package verify

import (
	"cmp"
	"errors"
	"slices"

	"symmem"
)

type outcome int

// The outcomes are in ascending order of severity. When a rank is lost, for example, others time
// out.
const (
	succeeded outcome = iota
	groupAborted
	rankLate
	otherError
	rankLost
	ranksDiverged
)

type rankResult struct {
	Rank       int                     `json:"rank"`
	Outcome    outcome                 `json:"outcome"`
	Text       string                  `json:"text"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	Findings   []finding               `json:"findings"`
	Norms      normFindings            `json:"norms"`
	Paths      map[string]string       `json:"paths"` // reason for each path that was taken
}

func (r *rankResult) setOutcome(err error) {
	r.Outcome = outcomeOf(err)
	if err == nil {
		return
	}
	r.Text = err.Error()
	if errors.As(err, &r.Divergence) {
		r.Text = r.Divergence.Error()
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
