package controltest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

// Ranks that launch a collective can compare their calls. Suppose that rank 0 calls an all-reduce
// of 5 elements, and rank 1 one of 6. Each rank calls Submit, which returns the number of the
// collective, its ticket. It then passes the ticket and the call to Compare, which compares the
// digests (hashes) of the calls. Both ranks get a MismatchError with the ticket. On rank 0, it
// lists rank 1, whose call differs from that of rank 0.

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

// testTicketNumbers calls Submit and TrySubmit in turns. Both return the next ticket.
func testTicketNumbers(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	for want := uint64(1); want <= 20; want += 2 {
		if got := p.Submit(); got != want {
			t.Fatalf("Submit = %d, want %d", got, want)
		}

		if got, ok := p.TrySubmit(); got != want+1 || !ok {
			t.Fatalf("TrySubmit = %d, %v, want %d", got, ok, want+1)
		}

		if got := p.Collectives(); got != want+1 {
			t.Fatalf("Collectives = %d, want %d", got, want+1)
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

// testEqualCalls lets four ranks compare 100 calls, each with another digest.
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

// testDifferingCalls lets three ranks submit three calls. The calls with ticket 1 are equal, those
// with ticket 2 are not compared, and those with ticket 3 have digests that differ.
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

			call := &driver.Call{Operation: driver.AllGather, Count: 5, Digest: c.digests[i]}
			p.Submit()
			err := p.Compare(p.Submit(), call)
			return checkMismatch(p, err, call, c.others[i])
		})
	}
}

// checkMismatch checks an error that Compare has returned for a call with ticket 3. others are the
// group ranks whose calls differ.
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
	if mismatch.Number != 3 || !isSameCall || !slices.Equal(mismatch.Others, wantRanks) {
		return fmt.Errorf("got %w (%+v); want ticket 3, call %+v and ranks %v",
			err, mismatch.Call, call, wantRanks)
	}

	<-p.Failed()
	if !errors.As(p.Cause(), &mismatch) {
		return fmt.Errorf("Cause() = %w; want the MismatchError", p.Cause())
	}

	return nil
}

// testUncomparedCalls lets rank 0 submit 10 calls and rank 1 submit 20, before each compares a call
// for the first time. Comparisons match in their order, so these two belong together.
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

// testMismatchBeforeAbort lets every rank abort as soon as Compare returns. Slower ranks must still
// get a MismatchError.
func testMismatchBeforeAbort(t *testing.T, join Join) {
	for range 20 {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(i int, p control.Plane) error {
			err := p.Compare(p.Submit(), &driver.Call{Digest: uint64(i)})
			p.Abort(nil)
			if !errors.As(err, new(*driver.MismatchError)) {
				return fmt.Errorf("got %w, want a MismatchError", err)
			}

			return nil
		})
	}
}
