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

// In these tests, ranks wait for a missing rank, which never makes the same call. A rank that times
// out gets a TimeoutError. The other ranks may notice this failure first and get ErrFault.

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

// In a group of missingGroupSize, the last rank is missing.
const (
	missingGroupSize = 3
	missingGroupRank = missingGroupSize - 1
)

func testMissingRank(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("from "+name, func(t *testing.T) {
			g := newGroup(t, join, missingGroupSize, shortTimeout)
			errs := g.runOnEach(func(i int, p control.Plane) error {
				if i == missingGroupRank {
					return nil
				}

				err := wait(p)
				<-p.Failed()
				return err
			})
			timeouts := 0
			missingRank := worldRanks(missingGroupSize)[missingGroupRank]
			for _, err := range errs[:missingGroupRank] {
				timeouts += CountTimeouts(t, err, missingRank)
			}

			if timeouts == 0 {
				t.Error("no rank got a TimeoutError")
			}

			missing := g.planes[missingGroupRank]
			waitForPeerFailure(missing)
			checkError(t, "a later wait of the missing rank", wait(missing), driver.ErrFault)
		})
	}
}

// Rank 0 waits for collective 2. Rank 1 does not submit it, because it waits for collective 1.
func testActivityOfMissingRank(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	errs := g.runOnEach(func(i int, p control.Plane) error {
		ticket := p.Submit()
		if i == 0 {
			ticket = p.Submit()
		}

		return p.Await(context.Background(), unfinishedWait(ticket)) // an AllGather
	})
	timeout, ok := errors.AsType[*driver.TimeoutError](errs[0])
	if !ok {
		t.Fatalf("got %v, want a TimeoutError", errs[0])
	}

	missingRank := worldRanks(2)[1]
	if activity := timeout.Activity[missingRank]; !strings.Contains(activity, "AllGather 1 for ") {
		t.Errorf("activity of rank %d = %q, want AllGather 1", missingRank, activity)
	}

	if !slices.Equal(timeout.Missing, []int{missingRank}) || timeout.Waited < shortTimeout {
		t.Errorf("got %+v, want missing rank %d after at least %v", timeout, missingRank, shortTimeout)
	}

	checkError(t, "the wait of the missing rank", errs[1], driver.ErrFault)
}

// Rank 1 has no time to arrive.
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
			timeout, ok := errors.AsType[*driver.TimeoutError](err)
			if !ok || len(timeout.Missing) > 0 || timeout.Activity[ownRank] == "" {
				t.Errorf("got %v, want a TimeoutError without missing ranks", err)
			}
		})
	}
}

func testInspection(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			g := newGroup(t, join, missingGroupSize, hangTimeout)
			g.runOnEach(func(i int, p control.Plane) error {
				if i != missingGroupRank {
					return wait(p)
				}

				defer p.Abort(nil) // ends the waits
				awaitInspection(t, g.planes[0], worldRanks(missingGroupSize)[missingGroupRank])
				return nil
			})
		})
	}
}

// awaitInspection calls Inspect until its first wait is only for missingRank, a world rank.
func awaitInspection(t *testing.T, p control.Plane, missingRank int) {
	t.Helper()
	const timeLimit = hangTimeout / 2 // before the waits time out
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); time.Since(begin) < timeLimit; <-ticks.C {
		inspection := p.Inspect()
		if len(inspection.Waits) == 0 {
			continue
		}

		wait := inspection.Waits[0]
		if slices.Equal(wait.Ranks, []int{missingRank}) {
			checkInspection(t, inspection, missingRank)
			return
		}
	}

	t.Errorf("Inspect = %+v, want a wait for rank %d", p.Inspect(), missingRank)
}

func checkInspection(t *testing.T, inspection driver.Inspection, missingRank int) {
	t.Helper()
	const otherRankCount = missingGroupSize - 1
	wait := inspection.Waits[0]
	isWaitDescribed := wait.InCall != "" && wait.Activity[missingRank] != ""
	if !isWaitDescribed || len(inspection.Activity) != otherRankCount {
		t.Errorf("Inspect = %+v, want a description of what each rank is doing", inspection)
	}
}
