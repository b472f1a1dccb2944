package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var pair = []int{0, 5}

func TestErrorsContainWorldAndGroupRanks(t *testing.T) {
	call := &Call{Operation: AllReduce, Count: 4, DataType: Float32}
	for want, err := range map[string]error{
		"AllReduce 3 of group g: waited 2s for world rank 5 (rank 1 of the group); " +
			"world rank 5: in a call": &TimeoutError{
			InCall: "AllReduce 3 of group g", Waited: 2 * time.Second, Missing: []int{5},
			Activity: map[int]string{5: "in a call"}, Members: pair,
		},
		"opening: waited 2s for ranks 1-2; rank 1: late": &TimeoutError{
			InCall: "opening", Waited: 2 * time.Second, Missing: []int{1, 2},
			Activity: map[int]string{1: "late"}, Members: []int{0, 1, 2},
		},
		"joining: waited 1s: world rank 0 did not arrive": &AbsentError{
			InCall: "joining", Waited: time.Second, Ranks: []int{0}, Members: pair,
			Err: fmt.Errorf("asking: %w", context.DeadlineExceeded),
		},
		"joining: rank 1 did not arrive: the store is full": &AbsentError{
			InCall: "joining", Ranks: []int{1}, Err: errors.New("the store is full"),
		},
		"agreement of group g: world ranks 0,5 (ranks 0-1 of the group) lost: " +
			"the process, or the connection to it, has ended": &RankLostError{
			InCall: "agreement of group g", Ranks: []int{0, 5}, Members: pair,
		},
		"AllReduce 1 of group g: world rank 5 (rank 1 of the group) failed first, " +
			"for a reason not known to this rank": &PeerError{
			InCall: "AllReduce 1 of group g", Ranks: []int{5}, Members: pair,
		},
		"AllReduce 1 of group g: aborted by another rank of the group": &PeerError{
			InCall: "AllReduce 1 of group g", Aborted: true,
		},
		"collective 3 of group g (AllReduce sum of 4 float32, path plain) differs from that of " +
			"world rank 5 (rank 1 of the group)": GroupConfig{ID: " g", Ranks: pair}.Mismatch(3, call, 1),
		"launch 3 of group g (AllReduce sum of 4 float32, path plain) differs from that of " +
			"rank 1": &MismatchError{
			Number: 3, Launch: true, Call: call, Others: []int{1}, Group: "g",
		},
		"message 2 (Recv of 0 float32, peer 0, path plain) differs from that of rank 1": &MismatchError{
			Number: 2, Call: &Call{Operation: Recv}, Others: []int{1},
		},
		"Check can never complete (deadlock); world rank 5 (rank 1 of the group): " +
			"has left the group": &DeadlockError{
			InCall: "Check", Activity: map[int]string{5: "has left the group"}, Members: pair,
		},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAbsentErrorIsTimeoutError(t *testing.T) {
	absent := &AbsentError{InCall: "opening", Waited: time.Second, Ranks: []int{3}, Err: syscall.EPIPE}
	err := fmt.Errorf("joining: %w", absent)
	var late *TimeoutError
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &late) || late.Missing[0] != 3 || late.Waited != time.Second {
		t.Errorf("errors.As found TimeoutError %+v, want a timeout of rank 3 after 1s", late)
	}
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Error("Timeout = false, want true")
	}
	if !errors.Is(err, syscall.EPIPE) {
		t.Error("errors.Is = false for the error that ended the wait, want true")
	}
	var lost *RankLostError
	if errors.As(err, &lost) {
		t.Error("errors.As found a RankLostError, want none")
	}
}

func TestPeerErrorMatchesErrAbortedAfterAbort(t *testing.T) {
	failed, aborted := &PeerError{}, &PeerError{Aborted: true}
	if !errors.Is(failed, ErrFault) || errors.Is(failed, ErrAborted) {
		t.Error("PeerError{} must match only ErrFault")
	}
	if !errors.Is(aborted, ErrFault) || !errors.Is(aborted, ErrAborted) {
		t.Error("PeerError{Aborted: true} must match ErrFault and ErrAborted")
	}
}

func TestErrorsSurviveJSON(t *testing.T) {
	activity := map[int]string{5: "not in a call"}
	call := &Call{Operation: Recv, Count: 7, DataType: Int8, Keep: func() {}, Norm: &Norm{}}
	for _, err := range []error{
		&TimeoutError{InCall: "a", Waited: 7, Missing: pair, Activity: activity, Members: pair},
		&AbsentError{InCall: "a", Waited: 7, Ranks: pair, Activity: activity, Members: pair},
		&RankLostError{InCall: "a", Ranks: pair, Members: pair},
		&PeerError{InCall: "a", Ranks: pair, Members: pair, Aborted: true},
		&DeadlockError{InCall: "a", Activity: activity, Members: pair},
		GroupConfig{ID: "g", Ranks: pair}.Mismatch(3, call, 1),
	} {
		encoded, jsonErr := json.Marshal(err)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		decoded := reflect.New(reflect.TypeOf(err).Elem()).Interface().(error)
		if jsonErr := json.Unmarshal(encoded, decoded); jsonErr != nil {
			t.Fatal(jsonErr)
		}
		if diff := cmp.Diff(err.Error(), decoded.Error()); diff != "" {
			t.Errorf("%T: %s", err, diff)
		}
	}
}

func TestOutOfMemoryErrorMatchesErrOutOfMemory(t *testing.T) {
	err := fmt.Errorf("mapping: %w", &OutOfMemoryError{Requested: 1, Cause: syscall.ENOMEM})
	if !errors.Is(err, ErrOutOfMemory) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v does not match ErrOutOfMemory and its cause", err)
	}
}
