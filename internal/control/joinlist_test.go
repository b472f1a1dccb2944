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

// If rank 0 waits for rank 1, and rank 1 for rank 2, the warning of rank 0 mentions both waits.
func TestWarningIncludesWaitsOfLateRanks(t *testing.T) {
	store := rendezvous.NewLocal()
	defer store.Close()
	const manyWarnings = 100 // more than rank 0 sends
	warnings := make(chan driver.LateWarning, manyWarnings)
	lists := make([]control.JoinList, 3)
	for rank := range lists {
		lists[rank] = control.JoinList{
			Store: store, Group: driver.GroupConfig{ID: "a", Ranks: []int{0, 1, 2}, Rank: rank},
		}
		if err := lists[rank].Add(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	awaitedBy := map[int][]int{0: {1}, 1: {2}}
	for rank, list := range lists {
		warn := func(w driver.LateWarning) {
			if rank == 0 {
				warnings <- w
			}
		}
		late := driver.Late{After: 5 * time.Millisecond, Warn: warn}
		stop := list.StartWarnings(late, func() []int { return awaitedBy[rank] })
		defer stop()
	}

	deadline := time.After(10 * time.Second)
	for {
		select {
		case w := <-warnings:
			if !slices.Equal(w.Ranks, []int{1}) {
				t.Fatalf("the warning lists ranks %v, want [1]", w.Ranks)
			}

			// Rank 1 may store its wait after the first warnings.
			mentionsWait := strings.Contains(w.Activity[1], "waits for rank 2")
			isOnlyActivity := len(w.Activity) == 1
			if mentionsWait && isOnlyActivity {
				return
			}
		case <-deadline:
			t.Fatal("no warning reports that rank 1 waits for rank 2")
		}
	}
}

// A timeout of rank 1 blames the ranks at the ends of all chains of waits. If the chains only form
// cycles, it blames the ranks that rank 1 waits for.
func TestBlockers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		awaited []int         // ranks that rank 1 waits for
		waits   map[int][]int // ranks that each other rank waits for
		want    []int         // ranks that the error blames
	}{
		"a rank that waits for no other": {
			awaited: []int{3}, waits: nil, want: []int{3},
		},
		"two ranks that wait for a third": {
			awaited: []int{2, 3}, waits: map[int][]int{2: {0}, 3: {0}}, want: []int{0},
		},
		"a chain": {
			awaited: []int{3}, waits: map[int][]int{3: {2}, 2: {0}}, want: []int{0},
		},
		"a rank that waits for this one": {
			awaited: []int{0}, waits: map[int][]int{0: {1}}, want: []int{0},
		},
		"ranks that wait for each other": {
			awaited: []int{0}, waits: map[int][]int{0: {2}, 2: {0}}, want: []int{0},
		},
		"two ranks, of which one waits": {
			awaited: []int{2, 3}, waits: map[int][]int{2: {0}}, want: []int{0, 3},
		},
		"a rank that waits for one outside the group": {
			awaited: []int{2}, waits: map[int][]int{2: {7}}, want: []int{2},
		},
		"a rank that waits for two others": {
			awaited: []int{0}, waits: map[int][]int{0: {2, 3}, 2: {3}}, want: []int{3},
		},
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
					_ = listOfRank.Blockers(waits) // stores waits, which rank 1 reads
				}
			}

			const waited = time.Second // long enough to blame other ranks
			err := list.TimeoutError(waited, c.awaited, nil)
			var absent *driver.AbsentError
			if !errors.As(err, &absent) {
				t.Fatalf("TimeoutError = %v, want an AbsentError", err)
			}

			if !slices.Equal(absent.Ranks, c.want) {
				t.Errorf("the error lists ranks %v, want %v", absent.Ranks, c.want)
			}
		})
	}
}
