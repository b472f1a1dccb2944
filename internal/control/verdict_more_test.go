package control

import (
	"errors"
	"slices"
	"testing"

	"symmem/driver"
)

// TestTimeoutNamesSourcesOfMemory covers ranks that are missing because they wait for memory of
// another rank.
func TestTimeoutNamesSourcesOfMemory(t *testing.T) {
	group := driver.GroupConfig{Ranks: []int{7, 5, 9, 2}, Timeout: driver.NewLimit(timeout)}
	for _, c := range []struct {
		name   string
		states []RankState
		want   []int
	}{
		{
			"of a rank that has arrived",
			[]RankState{{}, {Missing: true, Fetches: 3}, {}, {}},
			[]int{5, 9},
		},
		{
			"of a rank that waits for another",
			[]RankState{{}, {Missing: true, Fetches: 3}, {Fetches: 4}, {}},
			[]int{5, 9, 2},
		},
		{
			"of each other",
			[]RankState{{}, {Missing: true, Fetches: 3}, {Missing: true, Fetches: 2}, {}},
			[]int{5, 9},
		},
		{"of this rank", []RankState{{}, {Missing: true, Fetches: 1}, {}, {}}, []int{5}},
		{"of no rank of the group", []RankState{{}, {Missing: true, Fetches: 9}, {}, {}}, []int{5}},
		{"no longer", []RankState{{}, {Fetches: 3}, {}, {Missing: true}}, []int{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := WaitStatus{
				Group: group, CallText: func() string { return "work" }, Waited: timeout, Timeout: timeout,
			}
			var late *driver.TimeoutError
			if err := Judge(&w, c.states).Err; !errors.As(err, &late) ||
				!slices.Equal(late.Missing, c.want) {
				t.Errorf("got %v, want a timeout that names ranks %v", err, c.want)
			}
		})
	}
}
