package verify

import (
	"encoding/json"
	"errors"

	"symmem"
)

// ending is why a rank's program ended.
type ending string

// The endings, from the one that explains least to the one that explains the others: a rank that
// is lost makes others late, and what ends one group makes its ranks abort the others.
const (
	endedWell   ending = ""
	endAborted  ending = "aborted"
	endLate     ending = "late"
	endError    ending = "error"
	endLost     ending = "lost"
	endDiverged ending = "diverged"
)

var endings = []ending{endedWell, endAborted, endLate, endError, endLost, endDiverged}

// account is what one rank tells the others at the end.
type account struct {
	Rank       int             `json:"rank"`
	Ending     ending          `json:"ending"`
	Text       string          `json:"text"`
	Members    []int           `json:"members"`
	Divergence json.RawMessage `json:"divergence"`
	Findings   []finding       `json:"findings"`
	// Paths are the paths that all-reduces took, each with why the first one did.
	Paths map[string]string `json:"paths"`
}

// end notes how the program ended on this rank: by err, in a group with the given world ranks.
func (a *account) end(err error, members []int) {
	a.Ending = endingOf(err)
	if err == nil {
		return
	}
	a.Text = err.Error()
	var d *symmem.DivergenceError
	if errors.As(err, &d) {
		a.Text, a.Members = d.Error(), members
		// A report of plain words and numbers has no reason not to encode.
		a.Divergence, _ = d.MarshalJSON()
	}
}

func endingOf(err error) ending {
	var diverged *symmem.DivergenceError
	var lost *symmem.RankLostError
	var late *symmem.TimeoutError
	switch {
	case err == nil:
		return endedWell
	case errors.As(err, &diverged):
		return endDiverged
	case errors.As(err, &lost):
		return endLost
	case errors.As(err, &late):
		return endLate
	case errors.Is(err, symmem.ErrAborted):
		return endAborted
	}
	return endError
}

// gravest finds the account that explains the others best; the lowest rank's among equals, so that
// all ranks tell the same.
func gravest(accounts []account) *account {
	for i := len(endings) - 1; i > 0; i-- {
		for r := range accounts {
			if accounts[r].Ending == endings[i] {
				return &accounts[r]
			}
		}
	}
	return &account{}
}
