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

// explainError gets the error of a wait that reached its deadline a moment before the context was
// done.
func TestJoinReportsAbsentRankBeforeContextEnds(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	group := pairGroup(0)
	j := &joinState{g: &Group{}, joinList: control.JoinList{Store: store, Group: group}}
	check(t, j.joinList.Add(t.Context()))
	late := fmt.Errorf("agreement: %w", &driver.TimeoutError{InCall: "agreement", Missing: []int{1}})
	err := j.explainError(t.Context(), late)
	var absent *driver.AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{1}) {
		t.Errorf("explainError = %v; want an AbsentError about rank 1", err)
	}
}
