package controltest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// In each test, ranks wait for a rank that does not arrive. Suppose that ranks 0 and 1 wait in an
// exchange, and that rank 2 never calls Exchange. After the timeout, rank 0 gets a TimeoutError. It
// lists rank 2 as missing, and describes the activity of rank 2: the call in which rank 2 waits,
// for example. Rank 1 gets such an error, too, or ErrFault if it first notices that rank 0 has
// failed.

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

// testMissingRank lets ranks 0 and 1 wait for rank 2. At least one of them must get a TimeoutError
// about rank 2. The other may get ErrFault. When rank 2 has noticed the failure, its wait must
// fail, too.
func testMissingRank(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("from "+name, func(t *testing.T) {
			const lateRank = 2
			g := newGroup(t, join, lateRank+1, shortTimeout)
			errs := g.runOnEach(func(i int, p control.Plane) error {
				if i == lateRank {
					return nil
				}

				err := wait(p)
				<-p.Failed()
				return err
			})
			timeouts := 0
			lateWorldRank := worldRanks(lateRank + 1)[lateRank]
			for _, err := range errs[:lateRank] {
				timeouts += CountTimeouts(t, err, lateWorldRank)
			}

			if timeouts == 0 {
				t.Error("no rank got a TimeoutError")
			}

			waitForPeerFailure(g.planes[lateRank])
			checkError(t, "the wait of the late rank", wait(g.planes[lateRank]), driver.ErrFault)
		})
	}
}

// testActivityOfMissingRank lets rank 0 submit two collectives, with the tickets 1 and 2, and wait
// for the second. Rank 1 submits only the first, and waits for it. So rank 0 gets an error about
// rank 1, which waits in the first collective, an AllGather.
func testActivityOfMissingRank(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	errs := g.runOnEach(func(i int, p control.Plane) error {
		ticket := p.Submit()
		if i == 0 {
			ticket = p.Submit()
		}

		return p.Await(context.Background(), unfinishedWait(ticket))
	})
	late, ok := errors.AsType[*driver.TimeoutError](errs[0])
	if !ok {
		t.Fatalf("got %v, want a TimeoutError", errs[0])
	}

	missingRank := worldRanks(2)[1]
	if activity := late.Activity[missingRank]; !strings.Contains(activity, "AllGather 1 for ") {
		t.Errorf("activity of rank %d = %q, want AllGather 1", missingRank, activity)
	}

	if !slices.Equal(late.Missing, []int{missingRank}) || late.Waited < shortTimeout {
		t.Errorf("got %+v, want missing rank %d after at least %v", late, missingRank, shortTimeout)
	}

	checkError(t, "the wait of the missing rank", errs[1], driver.ErrFault)
}

// testWaitAfterDeadline lets rank 0 begin waits after their deadline. Rank 1 is missing, but it had
// no time to arrive. The error must therefore not name rank 1.
func testWaitAfterDeadline(t *testing.T, join Join) {
	waits := map[string]func(context.Context, control.Plane) error{
		"an exchange": func(ctx context.Context, p control.Plane) error {
			_, err := p.Exchange(ctx, driver.LaneControl, nil)
			return err
		},
		"a wait for work": func(ctx context.Context, p control.Plane) error {
			return p.Await(ctx, unfinishedWait(p.Submit()))
		},
	}
	for name, wait := range waits {
		t.Run("from "+name, func(t *testing.T) {
			g := newGroup(t, join, 2, hangTimeout)
			ctx, cancel := context.WithDeadline(g.ctx, time.Now())
			defer cancel()
			err := wait(ctx, g.planes[0])
			ownRank := worldRanks(2)[0]
			late, ok := errors.AsType[*driver.TimeoutError](err)
			if !ok || len(late.Missing) > 0 || late.Activity[ownRank] == "" {
				t.Errorf("got %v, want a TimeoutError about this rank only", err)
			}
		})
	}
}

// testInspection lets ranks 0 and 1 wait for rank 2. Meanwhile, Inspect on rank 0 must list its
// wait for rank 2. Rank 2 then aborts the group.
func testInspection(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			const lateRank = 2
			g := newGroup(t, join, lateRank+1, hangTimeout)
			g.runOnEach(func(i int, p control.Plane) error {
				if i < lateRank {
					return wait(p)
				}

				defer p.Abort(nil) // ends the waits
				awaitInspection(t, g.planes[0], worldRanks(lateRank + 1)[lateRank])
				return nil
			})
		})
	}
}

// awaitInspection calls Inspect until the first wait in the result is only for the world rank
// awaitedRank. It then checks the descriptions in the result.
func awaitInspection(t *testing.T, p control.Plane, awaitedRank int) {
	t.Helper()
	const otherRankCount = 2 // in the group of testInspection
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); time.Since(begin) < hangTimeout/2; <-ticks.C {
		inspection := p.Inspect()
		if len(inspection.Waits) == 0 {
			continue
		}

		wait := inspection.Waits[0]
		if !slices.Equal(wait.Ranks, []int{awaitedRank}) {
			continue
		}

		isWaitDescribed := wait.InCall != "" && wait.Activity[awaitedRank] != ""
		if !isWaitDescribed || len(inspection.Activity) != otherRankCount {
			t.Errorf("Inspect = %+v, want a description of what each rank is doing", inspection)
		}

		return
	}

	t.Errorf("Inspect = %+v, want a wait for rank %d", p.Inspect(), awaitedRank)
}
