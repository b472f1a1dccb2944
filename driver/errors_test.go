package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pair lists the world ranks (numbers among all processes) of a group of two. World rank 5 has the
// group rank 1.
var pair = []int{0, 5}

type errorText struct {
	err  error
	want string
}

func checkTexts(t *testing.T, cases []errorText) {
	t.Helper()
	for _, c := range cases {
		if got := c.err.Error(); got != c.want {
			t.Errorf("the text of %T is\n\t%q, want\n\t%q", c.err, got, c.want)
		}
	}
}

func TestErrorsContainWorldAndGroupRanks(t *testing.T) {
	checkTexts(t, []errorText{
		{
			err: &TimeoutError{
				InCall: "AllReduce 3 of group g", Waited: 2 * time.Second, Missing: []int{5},
				Activity: map[int]string{5: "in a call"}, Members: pair,
			},
			want: "AllReduce 3 of group g: waited 2s for world rank 5 (rank 1 of the group); " +
				"world rank 5: in a call",
		},
		{
			// The text omits group ranks, because they equal the world ranks.
			err: &TimeoutError{
				InCall: "opening", Waited: 2 * time.Second, Missing: []int{1, 2},
				Activity: map[int]string{1: "late"}, Members: []int{0, 1, 2},
			},
			want: "opening: waited 2s for ranks 1-2; rank 1: late",
		},
		{
			// The text omits the cause, because it already says "waited 1s".
			err: &AbsentError{
				InCall: "joining", Waited: time.Second, Ranks: []int{0}, Members: pair,
				Err: fmt.Errorf("asking: %w", context.DeadlineExceeded),
			},
			want: "joining: waited 1s: world rank 0 did not arrive",
		},
		{
			err: &AbsentError{
				InCall: "joining", Ranks: []int{1}, Err: errors.New("the store is full"),
			},
			want: "joining: rank 1 did not arrive: the store is full",
		},
		{
			err: &RankLostError{
				InCall: "agreement of group g", Ranks: []int{0, 5}, Members: pair,
			},
			want: "agreement of group g: world ranks 0,5 (ranks 0-1 of the group) lost: " +
				"the process, or the connection to it, has ended",
		},
		{
			err: &PeerError{InCall: "AllReduce 1 of group g", Ranks: []int{5}, Members: pair},
			want: "AllReduce 1 of group g: world rank 5 (rank 1 of the group) failed first, " +
				"for a reason not known to this rank",
		},
		{
			err:  &PeerError{InCall: "AllReduce 1 of group g", Aborted: true},
			want: "AllReduce 1 of group g: aborted by another rank of the group",
		},
		{
			err: &DeadlockError{
				InCall: "Check", Activity: map[int]string{5: "has left the group"}, Members: pair,
			},
			want: "Check can never complete (deadlock); world rank 5 (rank 1 of the group): " +
				"has left the group",
		},
	})
}

func TestMismatchErrorsDescribeCall(t *testing.T) {
	call := &Call{Operation: AllReduce, Count: 4, DataType: Float32}
	checkTexts(t, []errorText{
		{
			// The text omits the slashes of the ID.
			err: GroupConfig{ID: "// g", Ranks: pair}.Mismatch(3, call, 1),
			want: "collective 3 of group g (AllReduce sum of 4 float32, path plain) differs from " +
				"that of world rank 5 (rank 1 of the group)",
		},
		{
			err: &MismatchError{Number: 3, Launch: true, Call: call, Others: []int{1}, Group: "g"},
			want: "launch 3 of group g (AllReduce sum of 4 float32, path plain) differs from " +
				"that of rank 1",
		},
		{
			err:  &MismatchError{Number: 2, Call: &Call{Operation: Recv}, Others: []int{1}},
			want: "message 2 (Recv of 0 float32, peer 0, path plain) differs from that of rank 1",
		},
	})
}

// Callers can handle an AbsentError as a TimeoutError.
func TestAbsentErrorIsTimeoutError(t *testing.T) {
	absent := &AbsentError{InCall: "opening", Waited: time.Second, Ranks: []int{3}, Err: syscall.EPIPE}
	err := fmt.Errorf("joining: %w", absent)
	var late *TimeoutError
	if !errors.As(err, &late) {
		t.Fatalf("errors.As found no TimeoutError in %v", err)
	}

	if !slices.Equal(late.Missing, []int{3}) {
		t.Errorf("TimeoutError.Missing = %v, want rank 3", late.Missing)
	}

	if late.Waited != time.Second {
		t.Errorf("TimeoutError.Waited = %v, want 1s", late.Waited)
	}

	var netError interface{ Timeout() bool } // the part of net.Error that callers check
	if !errors.As(err, &netError) || !netError.Timeout() {
		t.Errorf("%v does not report that it is a timeout", err)
	}

	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v does not match EPIPE, the error that ended the wait", err)
	}

	var lost *RankLostError
	if errors.As(err, &lost) {
		t.Errorf("errors.As found the RankLostError %v, want none in %v", lost, err)
	}
}

func TestPeerErrorMatchesErrAbortedAfterAbort(t *testing.T) {
	failed, aborted := &PeerError{}, &PeerError{Aborted: true}
	if !errors.Is(failed, ErrFault) {
		t.Error("PeerError{} does not match ErrFault")
	}

	if errors.Is(failed, ErrAborted) {
		t.Error("PeerError{} matches ErrAborted, want only ErrFault")
	}

	if !errors.Is(aborted, ErrFault) {
		t.Error("PeerError{Aborted: true} does not match ErrFault")
	}

	if !errors.Is(aborted, ErrAborted) {
		t.Error("PeerError{Aborted: true} does not match ErrAborted")
	}
}

// Ranks send errors to each other as JSON.
func TestErrorsSurviveJSON(t *testing.T) {
	activity := map[int]string{5: "not in a call"}
	// JSON cannot represent the function in Keep.
	call := &Call{Operation: Recv, Count: 7, DataType: Int8, Keep: func() {}, Norm: &Norm{}}
	const waited = time.Second
	for _, err := range []error{
		&TimeoutError{InCall: "a", Waited: waited, Missing: pair, Activity: activity, Members: pair},
		&AbsentError{InCall: "a", Waited: waited, Ranks: pair, Activity: activity, Members: pair},
		&RankLostError{InCall: "a", Ranks: pair, Members: pair},
		&PeerError{InCall: "a", Ranks: pair, Members: pair, Aborted: true},
		&DeadlockError{InCall: "a", Activity: activity, Members: pair},
		GroupConfig{ID: "g", Ranks: pair}.Mismatch(3, call, 1),
	} {
		encoded, jsonErr := json.Marshal(err)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}

		typ := reflect.TypeOf(err).Elem() // all these errors are pointers
		decoded := reflect.New(typ).Interface().(error)
		if jsonErr := json.Unmarshal(encoded, decoded); jsonErr != nil {
			t.Fatal(jsonErr)
		}

		if diff := cmp.Diff(err.Error(), decoded.Error()); diff != "" {
			t.Errorf("%T has another text after JSON (- before, + after):\n%s", err, diff)
		}
	}
}

func TestOutOfMemoryErrorMatchesErrOutOfMemory(t *testing.T) {
	err := fmt.Errorf("mapping: %w", &OutOfMemoryError{Requested: 1, Cause: syscall.ENOMEM})
	for _, target := range []error{ErrOutOfMemory, syscall.ENOMEM} {
		if !errors.Is(err, target) {
			t.Errorf("the error %q does not match %q", err, target)
		}
	}
}
