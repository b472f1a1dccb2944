package verify

import (
	"errors"
	"fmt"
	"testing"

	"symmem"
)

func TestOutcomeOfError(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want outcome
	}{
		{"no error", nil, succeeded},
		{
			"a wrapped divergence",
			fmt.Errorf("registering: %w", &symmem.DivergenceError{}), ranksDiverged,
		},
		{"a lost rank", &symmem.RankLostError{Ranks: []int{1}}, rankLost},
		{"a late rank", &symmem.TimeoutError{Missing: []int{1}}, rankLate},
		{"a group aborted elsewhere", fmt.Errorf("x: %w", symmem.ErrAborted), groupAborted},
		{"any other error", errors.New("disk on fire"), otherError},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := outcomeOf(c.err); got != c.want {
				t.Fatalf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestMostSevereAccount(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes []outcome
		want     int // index of the result
	}{
		{"all succeeded", []outcome{succeeded, succeeded}, 0},
		{
			"divergence over the aborts that it caused",
			[]outcome{groupAborted, ranksDiverged, rankLate},
			1,
		},
		{"a lost rank over a late one", []outcome{rankLate, rankLost}, 1},
		{"the lowest rank among equal outcomes", []outcome{succeeded, rankLate, rankLate}, 1},
		{"an error over the timeouts of other ranks", []outcome{rankLate, otherError}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			results := make([]rankResult, len(c.outcomes))
			for i, e := range c.outcomes {
				results[i] = rankResult{Rank: i, Outcome: e, Text: "from " + fmt.Sprint(i)}
			}

			if got := mostSevere(results); got.Rank != c.want {
				t.Fatalf("got %+v, want the result of rank %d", got, c.want)
			}
		})
	}
}
