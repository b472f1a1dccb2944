package controltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

var missingContracts = []contract{
	{"a rank that does not arrive is reported", testAbsent},
	{"the error about a missing rank describes what that rank is waiting for", testActivity},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

// testAbsent makes all ranks wait for the last one. The first rank to time out reports the late
// rank. The others may return the first rank's fault. When the late rank has detected the fault, it
// must not complete a step that has failed on other ranks.
func testAbsent(t *testing.T, join Join) {
	for name, wait := range waits {
		t.Run("from "+name, func(t *testing.T) {
			const late = 2
			w := newWorld(t, join, late+1, shortTimeout)
			timeouts := 0
			for _, err := range w.outcomes(func(i int, p control.Plane) error {
				if i == late {
					return nil
				}
				defer func() { <-p.Failed() }()
				return wait(p)
			})[:late] {
				timeouts += WantAbsence(t, err, ranksOf(late + 1)[late])
			}
			if timeouts == 0 {
				t.Error("no rank got a TimeoutError")
			}
			awaitPeerFailed(w.planes[late])
			checkError(t, "the late rank", wait(w.planes[late]), driver.ErrFault)
		})
	}
}

func testActivity(t *testing.T, join Join) {
	w := newWorld(t, join, 2, shortTimeout)
	errs := w.outcomes(func(i int, p control.Plane) error {
		wait := unfinishedWait(p.Submit())
		if i == 0 {
			wait = unfinishedWait(p.Submit())
		}
		return p.Await(context.Background(), wait)
	})
	late, ok := errors.AsType[*driver.TimeoutError](errs[0])
	if !ok {
		t.Fatalf("got %v, want a TimeoutError", errs[0])
	}
	rank := ranksOf(2)[1]
	if doing := late.Activity[rank]; !strings.Contains(doing, "AllGather 1 for ") {
		t.Errorf("activity of rank %d = %q, want AllGather 1", rank, doing)
	}
	want := fmt.Sprint([]int{rank})
	if fmt.Sprint(late.Missing) != want || late.Waited < shortTimeout {
		t.Errorf("got %+v, want missing ranks %s after at least %v", late, want, shortTimeout)
	}
	checkError(t, "the missing rank", errs[1], driver.ErrFault)
}

// testInspection makes all ranks wait for the last one, which inspects one of them and then aborts
// the group.
func testInspection(t *testing.T, join Join) {
	for name, wait := range waits {
		t.Run("in "+name, func(t *testing.T) {
			const late = 2
			w := newWorld(t, join, late+1, patience)
			w.outcomes(func(i int, p control.Plane) error {
				if i < late {
					return wait(p)
				}
				defer p.Abort(nil)
				awaitInspection(t, w.planes[0], ranksOf(late + 1)[late])
				return nil
			})
		})
	}
}

// awaitInspection calls p.Inspect until it shows that p waits only for the given rank.
func awaitInspection(t *testing.T, p control.Plane, rank int) {
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); time.Since(begin) < patience/2; <-ticks.C {
		seen := p.Inspect()
		if len(seen.Waits) == 0 || !slices.Equal(seen.Waits[0].Ranks, []int{rank}) {
			continue
		}
		if w := seen.Waits[0]; w.InCall == "" || w.Activity[rank] == "" || len(seen.Activity) != 2 {
			t.Errorf("Inspect = %+v; want a description of what each rank is doing", seen)
		}
		return
	}
	t.Errorf("Inspect = %+v; want a wait for rank %d", p.Inspect(), rank)
}
