package shm

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

// TestJoinReportsAbsentRankBeforeContextEnds calls explain with the error of a wait that
// reached its context's deadline a moment before the context was done.
func TestJoinReportsAbsentRankBeforeContextEnds(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	group := duoGroup(0)
	j := &joinState{g: &Group{}, joinList: control.JoinList{Store: store, Group: group}}
	check(t, j.joinList.Add(t.Context()))
	late := fmt.Errorf("agreement: %w", &driver.TimeoutError{InCall: "agreement", Missing: []int{1}})
	err := j.explainError(t.Context(), late)
	var absent *driver.AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{1}) {
		t.Errorf("explain = %v; want an AbsentError that names rank 1", err)
	}
}
