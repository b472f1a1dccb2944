package verify

import (
	"cmp"
	"errors"
	"slices"

	"symmem"
)

type outcome int

// The outcomes in ascending order of severity. A more severe outcome on one rank can cause a less
// severe one on another: a lost rank makes others time out, and ranks of a failed group abort their
// other groups.
const (
	succeeded outcome = iota
	groupAborted
	rankLate
	otherError
	rankLost
	ranksDiverged
)

// account holds the results that a rank sends to the others at the end.
type account struct {
	Rank       int                     `json:"rank"`
	Outcome    outcome                 `json:"outcome"`
	Text       string                  `json:"text"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	Findings   []finding               `json:"findings"`
	// Paths maps each path that an all-reduce took to the reason for the first use of that path.
	Paths map[string]string `json:"paths"`
}

func (a *account) end(err error) {
	a.Outcome = outcomeOf(err)
	if err == nil {
		return
	}
	a.Text = err.Error()
	if errors.As(err, &a.Divergence) {
		a.Text = a.Divergence.Error()
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

// mostSevere returns the account with the most severe outcome, of the lowest rank if there are
// several, so that all ranks report the same account.
func mostSevere(accounts []account) *account {
	worst := slices.MaxFunc(accounts, func(a, b account) int {
		return cmp.Compare(a.Outcome, b.Outcome)
	})
	return &worst
}
