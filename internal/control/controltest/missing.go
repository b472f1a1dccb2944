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

// In these tests, ranks wait for a missing rank, which never makes their call. At least one waiting
// rank gets a TimeoutError. The others get ErrFault if they notice its failure first.

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

const missingRank = groupSize - 1 // group rank

func testMissingRank(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("from "+name, func(t *testing.T) {
			g := newGroup(t, join, groupSize, shortTimeout)
			errs := g.runOnEach(func(i int, p control.Plane) error {
				if i == missingRank {
					return nil
				}

				err := wait(p)
				<-p.Failed()
				return err
			})
			timeouts := 0
			for _, err := range errs[:missingRank] {
				timeouts += CountTimeouts(t, err, g.worldRank(missingRank))
			}

			if timeouts == 0 {
				t.Error("no rank got a TimeoutError")
			}

			missingPlane := g.planes[missingRank]
			waitForPeerFailure(missingPlane)
			checkError(t, "a later wait of the missing rank", wait(missingPlane), driver.ErrFault)
		})
	}
}

// Rank 1 waits for ticket 1, and never submits ticket 2, for which rank 0 waits.
func testActivityOfMissingRank(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	errs := g.runOnEach(func(i int, p control.Plane) error {
		lastTicket := p.Submit()
		if i == 0 {
			lastTicket = p.Submit()
		}

		return p.Await(context.Background(), newEndlessWait(lastTicket))
	})
	timeout, ok := errors.AsType[*driver.TimeoutError](errs[0])
	if !ok {
		t.Fatalf("got %v, want a TimeoutError", errs[0])
	}

	missing := g.worldRank(1)
	if activity := timeout.Activity[missing]; !strings.Contains(activity, "AllGather 1 for ") {
		t.Errorf("activity of world rank %d = %q, want AllGather 1", missing, activity)
	}

	if !slices.Equal(timeout.Missing, []int{missing}) || timeout.Waited < shortTimeout {
		t.Errorf("got %+v, want missing rank %d after at least %v", timeout, missing, shortTimeout)
	}

	checkError(t, "the wait of the missing rank", errs[1], driver.ErrFault)
}

func testWaitAfterDeadline(t *testing.T, join Join) {
	waits := map[string]func(context.Context, control.Plane) error{
		"an exchange": func(ctx context.Context, p control.Plane) error {
			_, err := p.Exchange(ctx, driver.LaneControl, nil)
			return err
		},
		"a wait for work": func(ctx context.Context, p control.Plane) error {
			return p.Await(ctx, newEndlessWait(p.Submit()))
		},
	}
	for name, wait := range waits {
		t.Run("from "+name, func(t *testing.T) {
			g := newGroup(t, join, 2, hangTimeout)
			expiredCtx, cancel := context.WithDeadline(g.ctx, time.Now())
			defer cancel()
			err := wait(expiredCtx, g.planes[0])
			timeout, ok := errors.AsType[*driver.TimeoutError](err)
			if !ok {
				t.Fatalf("got %v, want a TimeoutError", err)
			}

			ownActivity := timeout.Activity[g.worldRank(0)]
			if len(timeout.Missing) > 0 || ownActivity == "" {
				t.Errorf("got %+v, want no missing rank and an activity of the waiting rank", timeout)
			}
		})
	}
}

func testInspection(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			g := newGroup(t, join, groupSize, hangTimeout)
			_ = g.runOnEach(func(i int, p control.Plane) error {
				if i != missingRank {
					return wait(p)
				}

				defer p.Abort(nil) // ends the waits with errors
				awaitInspection(t, g.planes[0], g.worldRank(missingRank))
				return nil
			})
		})
	}
}

// awaitInspection calls Inspect until the oldest wait of p is for exactly one world rank, missing.
func awaitInspection(t *testing.T, p control.Plane, missing int) {
	t.Helper()
	timeLimit := time.After(hangTimeout / 2) // the waits end after hangTimeout
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for {
		inspection := p.Inspect()
		waits := inspection.Waits
		if len(waits) > 0 && slices.Equal(waits[0].Ranks, []int{missing}) {
			checkInspection(t, inspection, missing)
			return
		}

		select {
		case <-ticks.C:
		case <-timeLimit:
			t.Errorf("Inspect = %+v, want a wait for rank %d", inspection, missing)
			return
		}
	}
}

func checkInspection(t *testing.T, inspection driver.Inspection, missing int) {
	t.Helper()
	const otherRankCount = groupSize - 1
	wait := inspection.Waits[0]
	isWaitDescribed := wait.InCall != "" && wait.Activity[missing] != ""
	if !isWaitDescribed || len(inspection.Activity) != otherRankCount {
		t.Errorf("Inspect = %+v, want a description of what each other rank is doing", inspection)
	}
}
