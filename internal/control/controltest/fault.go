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

// Fail and Abort make a rank's plane fail. The rank's waits then return the cause, and waits of the
// other ranks return ErrFault.
//
// Ranks of a failed group can still exchange fault reports and agree on a decision.

var faultRequirements = []requirement{
	{"Abort ends the waits of all ranks", testAbort},
	{"Fail ends the waits of the other ranks and returns its argument", testFail},
	{"Cause returns the first fault", testFirstFault},
	{"exchanges of fault reports do not wait for ranks that have left", testFaultReportsAfterLeave},
	{"Decide returns the first proposal on all ranks", testFirstProposalWins},
	{"the other ranks get a decision even if its proposer has left", testDecisionOutlivesProposer},
	{"Decide returns a proposal that is too large, even after a decision", testTooLargeProposal},
	{"Departed lists ranks that have left", testDepartedRanks},
}

func testAbort(t *testing.T, join Join) {
	cause := errors.New("a cause")
	checkAbort(t, join, cause, cause)
	checkAbort(t, join, nil, driver.ErrAborted)
}

// checkAbort checks that the waits of all ranks end, and that the aborting rank's return wantErr.
func checkAbort(t *testing.T, join Join, cause, wantErr error) {
	t.Helper()
	checkWaitsEnd(t, join, func(p control.Plane) error {
		p.Abort(cause)
		<-p.Failed()
		if ticket, ok := p.TrySubmit(); ok {
			return fmt.Errorf("TrySubmit after Abort returned ticket %d, want none", ticket)
		}

		for name, wait := range waitFunctions {
			if err := wait(p); !errors.Is(err, wantErr) {
				return fmt.Errorf("%s: got %w, want %w", name, err, wantErr)
			}
		}

		return nil
	})
}

func testFail(t *testing.T, join Join) {
	cause := errors.New("a GPU has fallen off the bus")
	checkWaitsEnd(t, join, func(p control.Plane) error {
		if err := p.Fail(cause); !errors.Is(err, cause) {
			return fmt.Errorf("p.Fail returned %w, want its argument", err)
		}

		<-p.Failed()
		return nil
	})
}

// checkWaitsEnd calls failPlane for rank 0. It checks that the waits of the other ranks end and
// their planes fail.
func checkWaitsEnd(t *testing.T, join Join, failPlane func(p control.Plane) error) {
	t.Helper()
	waitNames := []string{"a comparison", "a wait for work", "an exchange"} // of ranks 1 to 3
	g := newGroup(t, join, 1+len(waitNames), hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == 0 {
			return failPlane(p)
		}

		name := waitNames[i-1]
		err := waitFunctions[name](p)
		isFault := errors.Is(err, driver.ErrFault)
		// Waits in different calls are a deadlock.
		isDeadlock := errors.As(err, new(*driver.DeadlockError))
		if !isFault && !isDeadlock {
			return fmt.Errorf("%s: got %w, want ErrFault or a DeadlockError", name, err)
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
	const leaver = 0
	g := newGroup(t, join, 3, hangTimeout)
	must(t, g.planes[leaver].Close())
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == leaver {
			return nil
		}

		reports, err := p.Exchange(g.ctx, driver.LaneFault, []byte("here"))
		if err != nil {
			return err
		}

		hasLeaverReported := reports[leaver] != nil
		haveOthersReported := string(reports[1]) == "here" && string(reports[2]) == "here"
		if hasLeaverReported || !haveOthersReported {
			return fmt.Errorf("got fault reports %q, want one from each rank except rank %d",
				reports, leaver)
		}

		return nil
	})
}

func testFirstProposalWins(t *testing.T, join Join) {
	const rankCount = 4
	g := newGroup(t, join, rankCount, hangTimeout)
	proposals := make([][]byte, rankCount)
	for rank := range proposals {
		size := driver.MaxPayload - rank // differs between ranks
		proposals[rank] = bytes.Repeat([]byte{byte(rank)}, size)
	}

	decisions := make([][]byte, rankCount)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		decisions[i] = p.Decide(proposals[i])
		return nil
	})
	isDecision := func(b []byte) bool { return bytes.Equal(b, decisions[0]) }
	if !slices.ContainsFunc(proposals, isDecision) {
		t.Errorf("Decide returned %d bytes, want one of the proposals", len(decisions[0]))
	}

	for i, decision := range decisions {
		if !isDecision(decision) {
			t.Errorf("rank %d got a decision of %d bytes, want that of rank 0", i, len(decision))
		}
	}
}

func testDecisionOutlivesProposer(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	if got := g.planes[2].Decide(nil); got != nil {
		t.Errorf("Decide(nil) = %q before any proposal; want nil", got)
	}

	proposer := g.planes[1]
	proposer.Abort(nil)
	if got := proposer.Decide([]byte("first")); string(got) != "first" {
		t.Errorf("Decide(first) = %q before any other proposal; want first", got)
	}

	must(t, proposer.Close())
	for _, p := range []control.Plane{g.planes[0], g.planes[2]} {
		if got := p.Decide(nil); string(got) != "first" {
			t.Errorf("Decide(nil) = %q after the proposer has left; want first", got)
		}

		if got := p.Decide([]byte("second")); string(got) != "first" {
			t.Errorf("Decide(second) = %q after the decision; want first", got)
		}
	}
}

func testTooLargeProposal(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.planes[1].Decide([]byte("first"))
	tooLarge := make([]byte, driver.MaxPayload+1)
	if got := g.planes[0].Decide(tooLarge); len(got) != len(tooLarge) {
		t.Errorf("Decide returned %d bytes for a proposal of %d bytes, want the proposal",
			len(got), len(tooLarge))
	}
}

func testDepartedRanks(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	p := g.planes[0]
	lost, left := p.Departed()
	if len(lost)+len(left) > 0 {
		t.Errorf("Departed() = %v, %v; want none", lost, left)
	}

	must(t, g.planes[1].Close())
	wantLeft := []int{g.worldRank(1)}
	lost, left = p.Departed()
	for len(lost)+len(left) == 0 && g.ctx.Err() == nil {
		runtime.Gosched()
		lost, left = p.Departed()
	}

	if !slices.Equal(left, wantLeft) || len(lost) > 0 {
		t.Fatalf("Departed() = lost ranks %v, left ranks %v; want no lost ranks, left ranks %v",
			lost, left, wantLeft)
	}
}
