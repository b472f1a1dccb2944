package controltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

var missingContracts = []contract{
	{"a rank that does not come is named", proveAbsent},
	{"the error about a missing rank describes the work that it is in", proveActivity},
}

// proveAbsent lets all ranks but the last wait for the last one. The first to time out names it;
// others may get the fault of the first before that. Once the late rank has seen the fault, it must
// not find a step complete that the others have given up.
func proveAbsent(t *testing.T, join Join) {
	for name, wait := range waits {
		t.Run("from "+name, func(t *testing.T) {
			const late = 2
			w := newWorld(t, join, late+1, short)
			named := 0
			for _, err := range w.outcomes(func(i int, p control.Plane) error {
				if i == late {
					return nil
				}
				defer func() { <-p.Failed() }()
				return wait(p)
			})[:late] {
				named += WantAbsence(t, err, ranksOf(late + 1)[late])
			}
			if named == 0 {
				t.Error("no rank has a TimeoutError")
			}
			awaitPeerFailed(w.planes[late])
			wantError(t, "the late rank", wait(w.planes[late]), driver.ErrFault)
		})
	}
}

// proveActivity delays rank 1 in work that needs no other rank.
func proveActivity(t *testing.T, join Join) {
	w := newWorld(t, join, 2, short)
	errs := w.outcomes(func(i int, p control.Plane) error {
		wait := never(p.Submit())
		if i == 0 {
			wait = never(p.Submit())
		}
		return p.Await(context.Background(), wait)
	})
	late, ok := errors.AsType[*driver.TimeoutError](errs[0])
	if !ok {
		t.Fatalf("got %v, want a TimeoutError", errs[0])
	}
	rank := ranksOf(2)[1]
	if doing := late.Activity[rank]; !strings.Contains(doing, "AllGather 1 for ") {
		t.Errorf("got %q, want that rank %d is in AllGather 1", doing, rank)
	}
	if want := fmt.Sprint([]int{rank}); fmt.Sprint(late.Missing) != want || late.Waited < short {
		t.Errorf("got %+v, want missing %s after %v or more", late, want, short)
	}
	wantError(t, "the rank behind", errs[1], driver.ErrFault)
}
