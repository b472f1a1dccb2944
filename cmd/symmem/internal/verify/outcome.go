package verify

import (
	"cmp"
	"errors"
	"slices"

	"symmem"
)

// ending classifies the end of a rank's program.
type ending int

// The endings in ascending order of precedence: a later one explains the earlier ones. A lost rank
// makes others late, and the failure of one group makes its ranks abort the others.
const (
	endedWell ending = iota
	endAborted
	endLate
	endError
	endLost
	endDiverged
)

// account holds the result that one rank sends to the others at the end.
type account struct {
	Rank       int                     `json:"rank"`
	Ending     ending                  `json:"ending"`
	Text       string                  `json:"text"`
	Divergence *symmem.DivergenceError `json:"divergence"`
	Findings   []finding               `json:"findings"`
	// Paths maps the paths that all-reduces took to the reason of the first one.
	Paths map[string]string `json:"paths"`
}

// end records how the program ended on this rank.
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

// gravest returns the account whose ending explains the others. Among equal endings it returns
// that of the lowest rank, so that all ranks report the same.
func gravest(accounts []account) *account {
	worst := slices.MaxFunc(accounts, func(a, b account) int {
		return cmp.Compare(a.Ending, b.Ending)
	})
	return &worst
}
