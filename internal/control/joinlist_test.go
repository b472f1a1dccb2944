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
		defer list.StartWarnings(late, func() []int { return awaited })()
	}
	for deadline := time.After(10 * time.Second); ; {
		select {
		case w := <-warnings:
			if !slices.Equal(w.Ranks, []int{1}) {
				t.Fatalf("the warning lists ranks %v, want rank 1", w.Ranks)
			}
			if strings.Contains(w.Activity[1], "waits for rank 2") && len(w.Activity) == 1 {
				return
			}
		case <-deadline:
			t.Fatal("no warning reports that rank 1 waits for rank 2")
		}
	}
}

func TestBlockers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits   map[int][]int // stored by all ranks except 1, which calls Blockers
		awaited []int
		want    []int
	}{
		"a rank that waits for no other":   {nil, []int{3}, []int{3}},
		"two ranks that wait for a third":  {map[int][]int{2: {0}, 3: {0}}, []int{2, 3}, []int{0}},
		"a chain":                          {map[int][]int{3: {2}, 2: {0}}, []int{3}, []int{0}},
		"a rank that waits for this one":   {map[int][]int{0: {1}}, []int{0}, []int{0}},
		"ranks that wait for each other":   {map[int][]int{0: {2}, 2: {0}}, []int{0}, []int{0}},
		"only one of two ranks waits":      {map[int][]int{2: {0}}, []int{2, 3}, []int{0, 3}},
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
				other := list
				other.Group.Rank = rank
				if err := other.Add(t.Context()); err != nil {
					t.Fatal(err)
				}
				if waits := c.waits[rank]; len(waits) > 0 {
					other.Blockers(waits) // stores waits for other ranks to read
				}
			}
			var absent *driver.AbsentError
			err := list.TimeoutError(time.Second, c.awaited, nil)
			if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, c.want) {
				t.Errorf("got %v, want ranks %v", err, c.want)
			}
		})
	}
}
