package control_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

// TestWarningIncludesWaitsOfLateRanks lets rank 0 wait for rank 1, which waits for rank 2. The
// warning of rank 0 must describe the wait of rank 1.
func TestWarningIncludesWaitsOfLateRanks(t *testing.T) {
	store := rendezvous.NewLocal()
	defer store.Close()
	warnings := make(chan driver.LateWarning, 100)
	lists := make([]control.JoinList, 3)
	for rank := range lists {
		lists[rank] = control.JoinList{
			Store: store, Group: driver.GroupConfig{ID: "a", Ranks: []int{0, 1, 2}, Rank: rank},
		}
		if err := lists[rank].Add(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for rank, list := range lists {
		late := driver.Late{After: 5 * time.Millisecond, Warn: func(w driver.LateWarning) {
			if rank == 0 {
				warnings <- w
			}
		}}
		awaited := map[int][]int{0: {1}, 1: {2}}[rank]
		stop := list.StartWarnings(late, func() []int { return awaited })
		defer stop()
	}
	for deadline := time.After(10 * time.Second); ; {
		select {
		case w := <-warnings:
			if !slices.Equal(w.Ranks, []int{1}) {
				t.Fatalf("the warning lists ranks %v, want rank 1", w.Ranks)
			}
			if strings.Contains(w.Activity[1], "waits for rank 2") && len(w.Activity) == 1 {
				return // earlier warnings may precede the report of rank 1
			}
		case <-deadline:
			t.Fatal("no warning reports that rank 1 waits for rank 2")
		}
	}
}

// TestBlockers lets rank 1 time out while it waits for other ranks. The error must list the ranks
// for which these ranks wait in turn, directly or not.
func TestBlockers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits   map[int][]int // by rank: the ranks that it waits for
		awaited []int         // ranks that rank 1 waits for
		want    []int         // ranks in the error
	}{
		"a rank that waits for no other":   {nil, []int{3}, []int{3}},
		"two ranks that wait for a third":  {map[int][]int{2: {0}, 3: {0}}, []int{2, 3}, []int{0}},
		"a chain":                          {map[int][]int{3: {2}, 2: {0}}, []int{3}, []int{0}},
		"a rank that waits for this one":   {map[int][]int{0: {1}}, []int{0}, []int{0}},
		"ranks that wait for each other":   {map[int][]int{0: {2}, 2: {0}}, []int{0}, []int{0}},
		"two ranks, of which one waits":    {map[int][]int{2: {0}}, []int{2, 3}, []int{0, 3}},
		"a rank outside the group":         {map[int][]int{2: {7}}, []int{2}, []int{2}},
		"a rank that waits for two others": {map[int][]int{0: {2, 3}, 2: {3}}, []int{0}, []int{3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := rendezvous.NewLocal()
			defer store.Close()
			group := driver.GroupConfig{ID: "a", Ranks: []int{0, 1, 2, 3}, Rank: 1}
			list := control.JoinList{Store: store, Group: group}
			for rank := range group.Ranks {
				listOfRank := list
				listOfRank.Group.Rank = rank
				if err := listOfRank.Add(t.Context()); err != nil {
					t.Fatal(err)
				}
				if waits := c.waits[rank]; len(waits) > 0 {
					listOfRank.Blockers(waits) // stores waits, so that rank 1 can read them
				}
			}
			var absent *driver.AbsentError
			err := list.TimeoutError(time.Second, c.awaited, nil)
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, c.want) {
				t.Errorf("TimeoutError = %v, want an error about ranks %v", err, c.want)
			}
		})
	}
}
