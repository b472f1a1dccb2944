package symmem_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
)

// reportedErrors lists errors of one rank that all ranks must return.
var reportedErrors = map[string]error{
	"RankLostError": &symmem.RankLostError{
		Ranks: []int{2}, InCall: "AllReduce 1", Members: []int{0, 2},
	},
	"TimeoutError": &symmem.TimeoutError{
		InCall: "AllReduce 1", Waited: time.Second, Missing: []int{2},
		Activity: map[int]string{2: "in no call"}, Members: []int{0, 2},
	},
	"DeadlockError": &symmem.DeadlockError{
		InCall: "AllReduce 1", Activity: map[int]string{2: "has left"}, Members: []int{0, 2},
	},
	"MessageError": &symmem.MessageError{
		Fault: symmem.MessagesDiffer, Group: "g",
		Ends: []symmem.MessageEnds{{From: 0, To: 2, Sent: 4, Received: 8}},
	},
	"DivergenceError": &symmem.DivergenceError{Group: "g", Message: "ranks diverged"},
	"PeerError": &symmem.PeerError{
		InCall: "AllReduce 1", Ranks: []int{2}, Members: []int{0, 2},
	},
}

// TestReportKeepsCauseOfPriorError checks that a cause keeps its type and its text.
func TestReportKeepsCauseOfPriorError(t *testing.T) {
	for name, cause := range reportedErrors {
		t.Run(name, func(t *testing.T) {
			err := symmem.Reported(&symmem.PriorError{InCall: "AllReduce 2", Rank: 1, Cause: cause})
			var prior *symmem.PriorError
			if !errors.As(err, &prior) || prior.InCall != "AllReduce 2" || prior.Rank != 1 {
				t.Fatalf("got %v, want the PriorError of rank 1 in AllReduce 2", err)
			}

			if got, want := any(prior.Cause), any(cause); !reflect.DeepEqual(got, want) {
				t.Errorf("Cause = %#v, want %#v", got, want)
			}
		})
	}

	t.Run("an abort", func(t *testing.T) {
		err := symmem.Reported(&symmem.PriorError{Cause: driver.ErrAborted})
		if !errors.Is(err, symmem.ErrAborted) {
			t.Errorf("got %v, want ErrAborted", err)
		}
	})
}
