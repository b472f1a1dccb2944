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

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

// testMissingRank lets all ranks except rank 2 wait for rank 2. The first rank that times out must
// get an error about the late rank. The others may get ErrFault. When the late rank has detected
// the failure, its wait must fail, too.
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

// testActivityOfMissingRank lets rank 0 submit work 1 and 2, and wait for work 2. Rank 1 submits
// only work 1 and waits for it.
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

// testInspection lets all ranks except rank 2 wait for rank 2. Rank 2 inspects the plane of rank 0
// and then aborts the group.
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

// awaitInspection calls Inspect until it lists a wait for the world rank awaitedRank only, and
// checks the descriptions in the result.
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
