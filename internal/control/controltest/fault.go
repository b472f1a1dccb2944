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

// A plane fails at its first fault: its rank calls Fail or Abort, or notices that another rank has
// failed. Waits on this rank then end with the cause, and on the other ranks with ErrFault.
//
// After a failure, ranks can exchange fault reports. They can also propose explanations to Decide,
// which returns the first proposal on all ranks.

var faultRequirements = []requirement{
	{"Abort ends the waits of all ranks", testAbort},
	{"Fail ends the waits of the other ranks and returns its argument", testFail},
	{"Cause returns the first fault", testFirstFault},
	{"exchanges of fault reports do not wait for ranks that have left", testFaultReportsAfterLeave},
	{"Decide returns the first proposal on all ranks", testFirstProposalWins},
	{"the other ranks get a decision even if its proposer has left", testDecisionOutlivesProposer},
	{"Departed lists ranks that have left", testDepartedRanks},
}

// testWaitsEnd lets failPlane make the plane of rank 0 fail. The waits of the other ranks end and
// their planes fail, too.
func testWaitsEnd(t *testing.T, join Join, failPlane func(p control.Plane) error) {
	t.Helper()
	const noWait = "" // of rank 0
	waitNames := []string{noWait, "a comparison", "a wait for work", "an exchange"}
	g := newGroup(t, join, len(waitNames), hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == 0 {
			return failPlane(p)
		}

		name := waitNames[i]
		err := waitFunctions[name](p)
		// The ranks wait in different calls, so they may detect a deadlock before the fault.
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
	for _, cause := range []error{nil, errors.New("a cause")} {
		want := cause
		if cause == nil {
			want = driver.ErrAborted // the default of Abort
		}

		testWaitsEnd(t, join, func(p control.Plane) error {
			p.Abort(cause)
			<-p.Failed()
			if ticket, ok := p.TrySubmit(); ok {
				return fmt.Errorf("TrySubmit after Abort returned ticket %d, want none", ticket)
			}

			for name, wait := range waitFunctions {
				if err := wait(p); !errors.Is(err, want) {
					return fmt.Errorf("%s: got %w, want the cause of the abort", name, err)
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
	for i, got := range decisions {
		proposer := got[0]
		isComplete := got == string(proposal(int(proposer)))
		if got != decisions[0] || !isComplete {
			t.Errorf("rank %d got %d bytes proposed by rank %d, but rank 0 got %d bytes",
				i, len(got), proposer, len(decisions[0]))
		}
	}
}

// proposal returns a proposal whose bytes and size identify the rank.
func proposal(rank int) []byte {
	return bytes.Repeat([]byte{byte(rank)}, driver.MaxPayload-rank)
}

func testDecisionOutlivesProposer(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	// Decide(nil) proposes nothing.
	if got := g.planes[2].Decide(nil); got != nil {
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
	wantLeft := []int{worldRanks(3)[1]}
	if lostRanks, leftRanks := p.Departed(); len(lostRanks)+len(leftRanks) > 0 {
		t.Errorf("Departed() = %v, %v; want none", lostRanks, leftRanks)
	}

	must(t, g.planes[1].Close())
	for {
		lostRanks, leftRanks := p.Departed()
		if slices.Equal(leftRanks, wantLeft) && len(lostRanks) == 0 {
			return
		}

		if g.ctx.Err() != nil || len(lostRanks) > 0 {
			t.Fatalf("Departed() = lost ranks %v, left ranks %v; want none and %v",
				lostRanks, leftRanks, wantLeft)
		}

		runtime.Gosched()
	}
}
