package controltest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

// Ranks that launch a collective can compare their calls. Each rank calls Submit, which returns the
// number of the collective, its ticket, and then Compare, which compares digests of the calls. If
// rank 0 reduces 5 elements and rank 1 reduces 6, both get a MismatchError that lists the other
// rank.

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
			t.Fatalf("TrySubmit = %d, %v, want %d", got, ok, want)
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
			call := driver.Call{Operation: driver.AllReduce, Digest: uint64(round) * 7}
			if err := p.Compare(p.Submit(), &call); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}

		return checkOpen(p)
	})
}

const mismatchTicket = 3 // ticket of the calls that differ in testDifferingCalls

func testDifferingCalls(t *testing.T, join Join) {
	cases := []struct {
		digests []uint64 // by group rank
		others  [][]int  // by group rank: group ranks that the rank's error must list
	}{
		{digests: []uint64{1, 1, 2}, others: [][]int{{2}, {2}, {0, 1}}},
		{digests: []uint64{3, 2, 2}, others: [][]int{{1, 2}, {0}, {0}}},
		{digests: []uint64{1, 2, 3}, others: [][]int{{1, 2}, {0, 2}, {0, 1}}},
	}
	for _, c := range cases {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(i int, p control.Plane) error {
			if err := p.Compare(p.Submit(), &driver.Call{Digest: 9}); err != nil {
				return err
			}

			p.Submit() // without a comparison
			call := &driver.Call{Operation: driver.AllGather, Count: 5, Digest: c.digests[i]}
			err := p.Compare(p.Submit(), call)
			return checkMismatch(p, err, call, c.others[i])
		})
	}
}

// checkMismatch checks the error of Compare on a rank. others are the group ranks whose calls
// differ.
func checkMismatch(p control.Plane, err error, call *driver.Call, others []int) error {
	mismatch, ok := errors.AsType[*driver.MismatchError](err)
	if !ok {
		return fmt.Errorf("got %w, want a MismatchError", err)
	}

	var wantRanks []int
	for _, i := range others {
		wantRanks = append(wantRanks, worldRanks(3)[i])
	}

	isSameCall := mismatch.Call.Digest == call.Digest && mismatch.Call.Count == call.Count
	areOthersRight := slices.Equal(mismatch.Others, wantRanks)
	if mismatch.Number != mismatchTicket || !isSameCall || !areOthersRight {
		return fmt.Errorf("got %w (%+v); want ticket %d, call %+v and ranks %v",
			err, mismatch.Call, mismatchTicket, call, wantRanks)
	}

	<-p.Failed()
	if !errors.As(p.Cause(), &mismatch) {
		return fmt.Errorf("Cause() = %w; want the MismatchError", p.Cause())
	}

	return nil
}

// Compare pairs the n-th comparisons of the ranks, however many calls they have submitted.
func testUncomparedCalls(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		for range 10 * (i + 1) {
			p.Submit()
		}

		const ticket = 100 // higher than all submitted tickets
		return p.Compare(ticket, &driver.Call{Digest: 5})
	})
}

func testMismatchBeforeAbort(t *testing.T, join Join) {
	for range 20 {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(i int, p control.Plane) error {
			err := p.Compare(p.Submit(), &driver.Call{Digest: uint64(i)})
			p.Abort(nil) // may precede the Compare of slower ranks
			if !errors.As(err, new(*driver.MismatchError)) {
				return fmt.Errorf("got %w, want a MismatchError", err)
			}

			return nil
		})
	}
}
