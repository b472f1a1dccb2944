package verify

import (
	"errors"
	"fmt"
	"testing"

	"symmem"
)

func TestEndingOfError(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want ending
	}{
		{"no error ended well", nil, endedWell},
		{
			"a wrapped divergence diverged",
			fmt.Errorf("registering: %w", &symmem.DivergenceError{}), endDiverged,
		},
		{"a lost rank is lost", &symmem.RankLostError{Ranks: []int{1}}, endLost},
		{"a late rank is late", &symmem.TimeoutError{Missing: []int{1}}, endLate},
		{"a group aborted elsewhere is aborted", fmt.Errorf("x: %w", symmem.ErrAborted), endAborted},
		{"anything else is an error", errors.New("disk on fire"), endError},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := endingOf(c.err); got != c.want {
				t.Fatalf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestGravestAccountExplainsOthers(t *testing.T) {
	for _, c := range []struct {
		name    string
		endings []ending
		want    int // index of the account
	}{
		{"none is grave if all ended well", []ending{endedWell, endedWell}, 0},
		{
			"a divergence takes precedence over the aborts that it caused",
			[]ending{endAborted, endDiverged, endLate},
			1,
		},
		{"a lost rank takes precedence over a late one", []ending{endLate, endLost}, 1},
		{"the lowest rank speaks among equals", []ending{endedWell, endLate, endLate}, 1},
		{"an error takes precedence over the timeouts of other ranks", []ending{endLate, endError}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			accounts := make([]account, len(c.endings))
			for i, e := range c.endings {
				accounts[i] = account{Rank: i, Ending: e, Text: "from " + fmt.Sprint(i)}
			}
			if got := gravest(accounts); got.Rank != c.want {
				t.Fatalf("got %+v, want that of rank %d", got, c.want)
			}
		})
	}
}
