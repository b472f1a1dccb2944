package control

import (
	"errors"
	"slices"
	"testing"

	"symmem/driver"
)

// TestTimeoutNamesRanksThatShareNoMemory covers ranks that are missing because another rank does
// not answer their request for its memory.
func TestTimeoutNamesRanksThatShareNoMemory(t *testing.T) {
	group := driver.GroupConfig{Ranks: []int{7, 5, 9, 2}, Timeout: driver.NewLimit(timeout)}
	for _, c := range []struct {
		name   string
		states []RankState
		want   []int
	}{
		{
			"the other rank has arrived",
			[]RankState{{}, {Missing: true, FetchesFrom: 3}, {}, {}},
			[]int{5, 9},
		},
		{
			"the other rank waits for a third",
			[]RankState{{}, {Missing: true, FetchesFrom: 3}, {FetchesFrom: 4}, {}},
			[]int{5, 9, 2},
		},
		{
			"two ranks wait for each other",
			[]RankState{{}, {Missing: true, FetchesFrom: 3}, {Missing: true, FetchesFrom: 2}, {}},
			[]int{5, 9},
		},
		{"it is this rank", []RankState{{}, {Missing: true, FetchesFrom: 1}, {}, {}}, []int{5}},
		{"it is not in the group", []RankState{{}, {Missing: true, FetchesFrom: 9}, {}, {}}, []int{5}},
		{"the rank has arrived", []RankState{{}, {FetchesFrom: 3}, {}, {Missing: true}}, []int{2}},
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
