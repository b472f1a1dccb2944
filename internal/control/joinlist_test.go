package control_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

// TestWarningsSayWhomALateRankWaitsFor has rank 0 wait for rank 1, which waits for rank 2.
func TestWarningsSayWhomALateRankWaitsFor(t *testing.T) {
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
		defer list.WarnLate(late, func() []int { return awaited })()
	}
	for deadline := time.After(10 * time.Second); ; {
		select {
		case w := <-warnings:
			if !slices.Equal(w.Ranks, []int{1}) {
				t.Fatalf("%v instead of rank 1", w.Ranks)
			}
			if strings.Contains(w.Activity[1], "waits for rank 2") && len(w.Activity) == 1 {
				return
			}
		case <-deadline:
			t.Fatal("no warning says that rank 1 waits for rank 2")
		}
	}
}
