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

var missingRequirements = []requirement{
	{"the error of a wait lists a rank that did not arrive", testMissingRank},
	{"the error about a missing rank describes what the rank waits for", testActivityOfMissingRank},
	{"a wait that begins after its deadline lists no missing rank", testWaitAfterDeadline},
	{"Inspect lists the ranks that a rank is waiting for", testInspection},
}

// All ranks wait for the last one. The first to time out gets an error about the late rank. The
// others can get an ErrFault. Once the late rank has detected this failure, its wait must fail.
func testMissingRank(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("from "+name, func(t *testing.T) {
			const lateRank = 2
			g := newGroup(t, join, lateRank+1, shortTimeout)
			timeouts := 0
			for _, err := range g.runOnEach(func(i int, p control.Plane) error {
				if i == lateRank {
					return nil
				}
				defer func() { <-p.Failed() }()
				return wait(p)
			})[:lateRank] {
				timeouts += CountTimeouts(t, err, worldRanks(lateRank + 1)[lateRank])
			}
			if timeouts == 0 {
				t.Error("no rank got a TimeoutError")
			}
			waitForPeerFailure(g.planes[lateRank])
			checkError(t, "the late rank", wait(g.planes[lateRank]), driver.ErrFault)
		})
	}
}

func testActivityOfMissingRank(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	errs := g.runOnEach(func(i int, p control.Plane) error {
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
	rank := worldRanks(2)[1]
	if activity := late.Activity[rank]; !strings.Contains(activity, "AllGather 1 for ") {
		t.Errorf("activity of rank %d = %q, want AllGather 1", rank, activity)
	}
	want := fmt.Sprint([]int{rank})
	if fmt.Sprint(late.Missing) != want || late.Waited < shortTimeout {
		t.Errorf("got %+v, want missing ranks %s after at least %v", late, want, shortTimeout)
	}
	checkError(t, "the missing rank", errs[1], driver.ErrFault)
}

// Rank 1 has no time to arrive, so it must not be named, even though it is missing.
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
			late, ok := errors.AsType[*driver.TimeoutError](err)
			if !ok || len(late.Missing) > 0 || late.Activity[worldRanks(2)[0]] == "" {
				t.Errorf("got %v, want a TimeoutError about this rank only", err)
			}
		})
	}
}

// All ranks wait for the last one, which inspects one of them and then aborts the group.
func testInspection(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			const lateRank = 2
			g := newGroup(t, join, lateRank+1, hangTimeout)
			g.runOnEach(func(i int, p control.Plane) error {
				if i < lateRank {
					return wait(p)
				}
				defer p.Abort(nil)
				awaitInspection(t, g.planes[0], worldRanks(lateRank + 1)[lateRank])
				return nil
			})
		})
	}
}

func awaitInspection(t *testing.T, p control.Plane, rank int) {
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); time.Since(begin) < hangTimeout/2; <-ticks.C {
		inspection := p.Inspect()
		if len(inspection.Waits) == 0 || !slices.Equal(inspection.Waits[0].Ranks, []int{rank}) {
			continue
		}
		if wait := inspection.Waits[0]; wait.InCall == "" || wait.Activity[rank] == "" ||
			len(inspection.Activity) != 2 {
			t.Errorf("Inspect = %+v; want a description of what each rank is doing", inspection)
		}
		return
	}
	t.Errorf("Inspect = %+v; want a wait for rank %d", p.Inspect(), rank)
}
