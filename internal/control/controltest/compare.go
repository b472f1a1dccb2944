package controltest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

// The calls in the n-th Compare of all ranks must have the same digest. The ticket is only for
// errors.

var compareRequirements = []requirement{
	{"tickets count from 1, and Submit allocates no memory", testTicketNumbers},
	{"identical calls pass the comparison repeatedly", testEqualCalls},
	{
		"if calls differ, every rank gets an error that lists the differing ranks",
		testDifferingCalls,
	},
	{"ranks can submit calls without comparing them", testUncomparedCalls},
	{
		"every rank gets a MismatchError even if another rank has already aborted",
		testMismatchBeforeAbort,
	},
}

func testTicketNumbers(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	want := uint64(0)
	for range 10 {
		want++
		if got := p.Submit(); got != want {
			t.Fatalf("Submit = %d, want %d", got, want)
		}

		want++
		if got, ok := p.TrySubmit(); got != want || !ok {
			t.Fatalf("TrySubmit = %d, %v; want %d, true", got, ok, want)
		}

		if got := p.Collectives(); got != want {
			t.Fatalf("Collectives = %d, want %d", got, want)
		}
	}

	allocations := testing.AllocsPerRun(1000, func() {
		p.Submit()
		if _, ok := p.TrySubmit(); !ok {
			t.Error("TrySubmit returned no ticket")
		}
	})
	if allocations != 0 {
		t.Errorf("Submit and TrySubmit allocate %v times, want 0", allocations)
	}
}

func testEqualCalls(t *testing.T, join Join) {
	g := newGroup(t, join, 4, hangTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		for round := range 100 {
			call := driver.Call{Operation: driver.AllReduce, Digest: uint64(round)}
			if err := p.Compare(p.Submit(), &call); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}

		return checkOpen(p)
	})
}

func testDifferingCalls(t *testing.T, join Join) {
	cases := []struct {
		digests   []uint64 // by group rank
		differing [][]int  // for each group rank, the group ranks with another digest
	}{
		{digests: []uint64{1, 1, 2}, differing: [][]int{{2}, {2}, {0, 1}}},
		{digests: []uint64{3, 2, 2}, differing: [][]int{{1, 2}, {0}, {0}}},
		{digests: []uint64{1, 2, 3}, differing: [][]int{{1, 2}, {0, 2}, {0, 1}}},
	}
	for _, c := range cases {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(i int, p control.Plane) error {
			if err := p.Compare(p.Submit(), &barrierCall); err != nil {
				return err
			}

			p.Submit() // not compared
			call := &driver.Call{Operation: driver.AllGather, Count: 5, Digest: c.digests[i]}
			ticket := p.Submit()
			err := p.Compare(ticket, call)
			want := driver.MismatchError{Number: ticket, Call: call}
			for _, rank := range c.differing[i] {
				want.Others = append(want.Others, g.worldRank(rank))
			}

			return checkMismatch(p, err, &want)
		})
	}
}

// checkMismatch checks that err, from Compare, is like want, and that the plane has failed.
func checkMismatch(p control.Plane, err error, want *driver.MismatchError) error {
	mismatch, ok := errors.AsType[*driver.MismatchError](err)
	if !ok {
		return fmt.Errorf("got %w, want a MismatchError", err)
	}

	isCallEqual := mismatch.Call.Digest == want.Call.Digest && mismatch.Call.Count == want.Call.Count
	areOthersEqual := slices.Equal(mismatch.Others, want.Others)
	if mismatch.Number != want.Number || !isCallEqual || !areOthersEqual {
		return fmt.Errorf("got %w (%+v); want ticket %d, call %+v and ranks %v",
			err, mismatch.Call, want.Number, want.Call, want.Others)
	}

	<-p.Failed()
	if !errors.As(p.Cause(), new(*driver.MismatchError)) {
		return fmt.Errorf("Cause() = %w; want the MismatchError", p.Cause())
	}

	return nil
}

func testUncomparedCalls(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	submitCounts := []int{10, 20} // by group rank
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		for range submitCounts[i] {
			p.Submit()
		}

		const unsubmittedTicket = 100
		return p.Compare(unsubmittedTicket, &barrierCall)
	})
}

func testMismatchBeforeAbort(t *testing.T, join Join) {
	for range 20 {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(i int, p control.Plane) error {
			err := p.Compare(p.Submit(), &driver.Call{Digest: uint64(i)})
			p.Abort(nil) // perhaps before the Compare of another rank has returned
			if !errors.As(err, new(*driver.MismatchError)) {
				return fmt.Errorf("got %w, want a MismatchError", err)
			}

			return nil
		})
	}
}
