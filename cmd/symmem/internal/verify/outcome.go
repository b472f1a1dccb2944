package verify

import (
	"cmp"
	"errors"
	"slices"

	"symmem"
)

// ending is why a rank's program ended.
type ending int

// The endings, from the one that explains least to the one that explains the others: a rank that
// is lost makes others late, and what ends one group makes its ranks abort the others.
const (
	endedWell ending = iota
	endAborted
	endLate
	endError
	endLost
	endDiverged
)

// account is what one rank tells the others at the end.
type account struct {
	Rank       int                     `json:"rank"`
	Ending     ending                  `json:"ending"`
	Text       string                  `json:"text"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	Findings   []finding               `json:"findings"`
	// Paths are the paths that all-reduces took, each with why the first one did.
	Paths map[string]string `json:"paths"`
}

// end notes how the program ended on this rank.
func (a *account) end(err error) {
	a.Ending = endingOf(err)
	if err == nil {
		return
	}
	a.Text = err.Error()
	if errors.As(err, &a.Divergence) {
		a.Text = a.Divergence.Error()
	}
}

func endingOf(err error) ending {
	switch {
	case err == nil:
		return endedWell
	case errors.As(err, new(*symmem.DivergenceError)):
		return endDiverged
	case errors.As(err, new(*symmem.RankLostError)):
		return endLost
	case errors.As(err, new(*symmem.TimeoutError)):
		return endLate
	case errors.Is(err, symmem.ErrAborted):
		return endAborted
	}
	return endError
}

// gravest finds the account that explains the others best; the lowest rank's among equals, so that
// all ranks report the same.
func gravest(accounts []account) *account {
	worst := slices.MaxFunc(accounts, func(a, b account) int {
		return cmp.Compare(a.Ending, b.Ending)
	})
	return &worst
}
