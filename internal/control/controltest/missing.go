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

// In these tests, ranks wait for a missing rank that never arrives. They get a TimeoutError, which
// describes what the missing rank does instead, or ErrFault if another rank times out first.

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

const (
	missingGroupSize = 3
	lateRank         = missingGroupSize - 1 // group rank that the others wait for
)

func testMissingRank(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("from "+name, func(t *testing.T) {
			g := newGroup(t, join, missingGroupSize, shortTimeout)
			errs := g.runOnEach(func(i int, p control.Plane) error {
				if i == lateRank {
					return nil
				}

				err := wait(p)
				<-p.Failed()
				return err
			})
			timeouts := 0
			lateWorldRank := worldRanks(missingGroupSize)[lateRank]
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

// Rank 1 waits for the first collective, an AllGather, and therefore never submits the second one,
// for which rank 0 waits.
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

// Rank 1 does not arrive, but had no time to do so.
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

func testInspection(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			g := newGroup(t, join, missingGroupSize, hangTimeout)
			g.runOnEach(func(i int, p control.Plane) error {
				if i < lateRank {
					return wait(p)
				}

				defer p.Abort(nil) // ends the waits
				awaitInspection(t, g.planes[0], worldRanks(missingGroupSize)[lateRank])
				return nil
			})
		})
	}
}

// awaitInspection calls Inspect until it lists a wait for only the world rank awaitedRank.
func awaitInspection(t *testing.T, p control.Plane, awaitedRank int) {
	t.Helper()
	const otherRankCount = missingGroupSize - 1
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
