package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

// A plane, the connection of a rank to the other ranks, fails when the rank calls Fail or Abort, or
// notices that another rank has failed. All waits then end: on the rank with the cause, and on the
// other ranks with ErrFault.
//
// After a failure, the ranks can exchange fault reports. They can also agree on an explanation with
// Decide, which returns the first proposal on all ranks.

var faultRequirements = []requirement{
	{"Abort ends the waits of all ranks", testAbort},
	{"Fail ends the waits of the other ranks and returns its argument", testFail},
	{"Cause returns the first fault", testFirstFault},
	{"exchanges of fault reports do not wait for ranks that have left", testFaultReportsAfterLeave},
	{"Decide returns the first proposal on all ranks", testFirstProposalWins},
	{"the other ranks get a decision even if its proposer has left", testDecisionOutlivesProposer},
	{"Departed lists ranks that have left", testDepartedRanks},
}

// testWaitsEnd calls failPlane for rank 0. It checks that the waits of the other ranks end and that
// their planes fail.
func testWaitsEnd(t *testing.T, join Join, failPlane func(p control.Plane) error) {
	t.Helper()
	waitNames := []string{1: "a comparison", 2: "a wait for work", 3: "an exchange"} // by rank
	g := newGroup(t, join, len(waitNames), hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == 0 {
			return failPlane(p)
		}

		name := waitNames[i]
		err := waitFunctions[name](p)
		// A rank may notice first that the other ranks wait in different calls.
		isFault := errors.Is(err, driver.ErrFault)
		isDeadlock := errors.As(err, new(*driver.DeadlockError))
		if !isFault && !isDeadlock {
			return fmt.Errorf("%s: got %w, want ErrFault or a DeadlockError", name, err)
		}

		<-p.Failed()
		return nil
	})
}

func testAbort(t *testing.T, join Join) {
	cause := errors.New("a cause")
	for _, c := range []struct{ cause, want error }{
		{cause: cause, want: cause},
		{cause: nil, want: driver.ErrAborted},
	} {
		testWaitsEnd(t, join, func(p control.Plane) error {
			p.Abort(c.cause)
			<-p.Failed()
			if ticket, ok := p.TrySubmit(); ok {
				return fmt.Errorf("TrySubmit after Abort returned ticket %d, want none", ticket)
			}

			for name, wait := range waitFunctions {
				if err := wait(p); !errors.Is(err, c.want) {
					return fmt.Errorf("%s: got %w, want %w", name, err, c.want)
				}
			}

			return nil
		})
	}
}

func testFail(t *testing.T, join Join) {
	cause := errors.New("a GPU has fallen off the bus")
	testWaitsEnd(t, join, func(p control.Plane) error {
		if err := p.Fail(cause); !errors.Is(err, cause) {
			return fmt.Errorf("error of Fail = %w, want its argument", err)
		}

		<-p.Failed()
		return nil
	})
}

func testFirstFault(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	first, second := errors.New("first"), errors.New("second")
	must(t, checkOpen(p))
	checkError(t, "the first Fail", p.Fail(first), first)
	checkError(t, "the second Fail", p.Fail(second), second)
	p.Abort(nil)
	checkError(t, "Cause", p.Cause(), first)
	waitForPeerFailure(g.planes[1])
}

func testFaultReportsAfterLeave(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	must(t, g.planes[0].Close())
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == 0 {
			return nil
		}

		reports, err := p.Exchange(g.ctx, driver.LaneFault, []byte("here"))
		if err != nil {
			return err
		}

		hasLeaverReported := reports[0] != nil
		haveOthersReported := string(reports[1]) == "here" && string(reports[2]) == "here"
		if hasLeaverReported || !haveOthersReported {
			return fmt.Errorf("got fault reports %q, want one from each rank except rank 0", reports)
		}

		return nil
	})
}

func testFirstProposalWins(t *testing.T, join Join) {
	const rankCount = 4
	g := newGroup(t, join, rankCount, hangTimeout)
	decisions := make([]string, rankCount)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		decisions[i] = string(p.Decide(proposal(i)))
		return nil
	})
	proposer := int(decisions[0][0])
	want := string(proposal(proposer))
	for i, got := range decisions {
		if got != want {
			t.Errorf("rank %d got %d bytes proposed by rank %d, want %d bytes by rank %d",
				i, len(got), got[0], len(want), proposer)
		}
	}
}

// proposal returns a large proposal. Its size and each of its bytes identify the rank.
func proposal(rank int) []byte {
	size := driver.MaxPayload - rank
	return bytes.Repeat([]byte{byte(rank)}, size)
}

func testDecisionOutlivesProposer(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	if got := g.planes[2].Decide(nil); got != nil { // proposes nothing
		t.Errorf("Decide(nil) = %q before any proposal; want nil", got)
	}

	g.planes[1].Abort(nil)
	if got := g.planes[1].Decide([]byte("first")); string(got) != "first" {
		t.Errorf("Decide(first) = %q before any other proposal; want first", got)
	}

	must(t, g.planes[1].Close())
	for _, p := range []control.Plane{g.planes[0], g.planes[2]} {
		if got := p.Decide(nil); string(got) != "first" {
			t.Errorf("Decide(nil) = %q after the proposer has left; want first", got)
		}

		if got := p.Decide([]byte("second")); string(got) != "first" {
			t.Errorf("Decide(second) = %q after the decision; want first", got)
		}
	}

	tooLarge := make([]byte, driver.MaxPayload+1)
	if got := g.planes[0].Decide(tooLarge); len(got) != len(tooLarge) {
		t.Errorf("Decide returned %d bytes for a proposal of %d bytes, want the proposal",
			len(got), len(tooLarge))
	}
}

func testDepartedRanks(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	p := g.planes[0]
	if lostRanks, leftRanks := p.Departed(); len(lostRanks)+len(leftRanks) > 0 {
		t.Errorf("Departed() = %v, %v; want none", lostRanks, leftRanks)
	}

	must(t, g.planes[1].Close())
	wantLeft := []int{worldRanks(3)[1]}
	for {
		lostRanks, leftRanks := p.Departed()
		if slices.Equal(leftRanks, wantLeft) && len(lostRanks) == 0 {
			return
		}

		if g.ctx.Err() != nil || len(lostRanks) > 0 {
			t.Fatalf("Departed() = lost ranks %v, left ranks %v; want no lost ranks, left ranks %v",
				lostRanks, leftRanks, wantLeft)
		}

		runtime.Gosched()
	}
}
