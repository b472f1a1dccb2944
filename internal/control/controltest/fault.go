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

// A plane fails at its first fault: its rank calls Fail or Abort, or observes that another rank has
// failed. Suppose that rank 0 of two ranks calls Abort. On rank 0, waits then end with the cause of
// the abort. On rank 1, they end with an error that matches ErrFault.
//
// Afterwards, the ranks can exchange fault reports. They can also call Decide, with which each rank
// proposes an explanation of the failure. All ranks get the first proposal.

var faultRequirements = []requirement{
	{"Abort ends the waits of all ranks", testAbort},
	{"Fail ends the waits of the other ranks and returns its argument", testFail},
	{"Cause returns the first fault", testFirstFault},
	{"exchanges of fault reports do not wait for ranks that have left", testFaultReportsAfterLeave},
	{"Decide returns the first proposal on all ranks", testFirstProposalWins},
	{"the other ranks get a decision even if its proposer has left", testDecisionOutlivesProposer},
	{"Departed lists ranks that have left", testDepartedRanks},
}

// testWaitsEnd calls failPlane, which must make the plane of rank 0 fail. It checks that the waits
// of ranks 1 to 3 then end, and that their planes fail, too.
func testWaitsEnd(t *testing.T, join Join, failPlane func(p control.Plane) error) {
	t.Helper()
	waits := []string{"a comparison", "a wait for work", "an exchange"} // see waitFunctions
	g := newGroup(t, join, 1+len(waits), hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		if i == 0 {
			return failPlane(p)
		}

		name := waits[i-1]
		err := waitFunctions[name](p)
		// Ranks that wait in different calls can detect a deadlock before they detect the fault.
		isFault := errors.Is(err, driver.ErrFault)
		isDeadlock := errors.As(err, new(*driver.DeadlockError))
		if !isFault && !isDeadlock {
			return fmt.Errorf("%s: got %w, want ErrFault or a DeadlockError", name, err)
		}

		<-p.Failed()
		return nil
	})
}

// testAbort aborts with a cause and without one. It also checks that later waits of the plane fail.
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

// testFail calls Fail on rank 0.
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

// testFirstFault lets rank 0 fail three times. Cause must return the first error.
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

// testFaultReportsAfterLeave lets rank 0 leave. Ranks 1 and 2 exchange reports, and must get none
// from rank 0.
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

		haveRanksReported := string(reports[1]) == "here" && string(reports[2]) == "here"
		if reports[0] != nil || !haveRanksReported {
			return fmt.Errorf("got fault reports %q, want one from each rank except rank 0", reports)
		}

		return nil
	})
}

// testFirstProposalWins lets four ranks propose at the same time. All must get the same proposal.
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

// proposal returns the proposal of a rank, whose bytes all have the value rank. The sizes of the
// proposals differ, too.
func proposal(rank int) []byte {
	return bytes.Repeat([]byte{byte(rank)}, driver.MaxPayload-rank)
}

// testDecisionOutlivesProposer lets rank 1 propose "first" and leave. The others must get "first".
func testDecisionOutlivesProposer(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	// Decide(nil) returns the decision without proposing one.
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

// testDepartedRanks lets group rank 1 leave and waits until rank 0 notices.
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
