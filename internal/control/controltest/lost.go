package controltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/rendezvous"
)

// Each test here starts a group of ranks, one process per rank. The ranks repeat a wait for each
// other, such as a comparison. The test then kills or stops one of them, the victim, and reads the
// output of the others. Suppose that it kills rank 2 of the ranks 0, 1 and 2:
//
//   - On rank 0, the comparison ends with a RankLostError about rank 2. On rank 1, it can also end
//     with ErrFault, if rank 1 first notices that rank 0 has failed.
//   - Ranks 0 and 1 print the event "failed", and send a report to all ranks: a message that they
//     have failed.
//   - Both print the event "outcome" at the end. On rank 0, it contains the kind of the error,
//     "lost", the ranks that the error is about, [2], and for each rank whether its report has
//     arrived, [true true false].
//
// The kind "lost" stands for a RankLostError, "late" for a TimeoutError, and "fault" for ErrFault.
//
// A wait times out after hangTimeout, or after shortTimeout in tests of timeouts. Some tests do not
// name a wait but a program, such as fetchProgram, in which the ranks do different things.

// groupSize is the number of ranks in each group except that of testExitAfterLeaving.
const groupSize = 3

// lostRequirements are the sentences that this file tests. The tests do not use Join, because the
// processes get it from Main.
var lostRequirements = []requirement{
	{
		"the other ranks return errors about a killed rank, and exchange fault reports without it",
		testKilledRank,
	},
	{
		"if a rank is killed while no rank waits, PeerFailed becomes true on the others",
		testKilledWithoutWaits,
	},
	{"the other ranks return timeouts about a stopped rank", testStoppedRank},
	{"a timeout about a rank that stops in a fetch lists no other rank", testStoppedInFetch},
	{"a rank that resumes after the timeout blames no other rank", testResumedRank},
	{
		"a rank that leaves the group before its process exits causes no RankLostError",
		testExitAfterLeaving,
	},
}

// testKilledRank kills a rank during each kind of wait. The victim is rank 1, or rank 0, which can
// have special tasks in a group.
func testKilledRank(t *testing.T, _ Join) {
	for waitName := range waitFunctions {
		for victim := range 2 {
			testName := fmt.Sprintf("rank %d in %s", victim, waitName)
			t.Run(testName, func(t *testing.T) {
				procs := startProcesses(t, groupSize, waitName, hangTimeout)
				procs[victim].sendSignal(syscall.SIGKILL)
				procs.checkLost(victim)
			})
		}
	}
}

// testKilledWithoutWaits kills rank 2 while the others do not wait. They call PeerFailed until it
// reports that another rank has failed or is lost.
func testKilledWithoutWaits(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, idleProgram, hangTimeout)
	procs[victim].sendSignal(syscall.SIGKILL)
	procs.checkLost(victim)
}

// checkLost checks the outcomes of the ranks other than a killed victim. At least one must be a
// RankLostError about the victim. The others can be ErrFault.
func (procs processes) checkLost(victim int) {
	lostErrors := 0 // about the victim
	for _, p := range procs.except(victim) {
		o := p.awaitEvent("outcome")
		isAboutVictim := slices.Equal(o.Ranks, []int{victim})
		switch {
		case o.Kind == "lost" && isAboutVictim:
			lostErrors++
		case o.Kind != "fault":
			p.rejectOutcome(o, fmt.Sprintf(`kind "lost", rank %d`, victim))
		}

		p.checkReports(o, victim)
		// o.Lost holds the lost ranks that the rank got from Plane.Departed at the end.
		if !slices.Equal(o.Lost, []int{victim}) {
			p.t.Errorf("rank %d: Departed() lists lost ranks %v, want [%d]", p.rank, o.Lost, victim)
		}
	}

	if lostErrors == 0 {
		procs[victim].t.Errorf("no rank got a RankLostError about rank %d", victim)
	}
}

// except returns the processes of all ranks except one.
func (procs processes) except(rank int) processes {
	return slices.Delete(slices.Clone(procs), rank, rank+1)
}

// rejectOutcome fails the test because of a wrong outcome. want describes a correct one.
func (p *process) rejectOutcome(o output, want string) {
	p.t.Helper()
	p.t.Errorf("rank %d got kind %q, ranks %v (%s); want %s", p.rank, o.Kind, o.Ranks, o.Text, want)
}

// checkReports checks that reports of all ranks except the victim have arrived at rank p.rank.
func (p *process) checkReports(o output, victim int) {
	p.t.Helper()
	wantReports := slices.Repeat([]bool{true}, groupSize) // a rank gets its own report, too
	wantReports[victim] = false
	if !slices.Equal(o.HasReported, wantReports) {
		p.t.Errorf("rank %d received reports %v, want %v", p.rank, o.HasReported, wantReports)
	}
}

// testStoppedRank stops rank 2 until the others have printed their outcomes. When rank 2 resumes,
// it must notice that they have failed.
func testStoppedRank(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, "a comparison", shortTimeout)
	procs[victim].sendSignal(syscall.SIGSTOP)
	procs.checkLate(victim)
	procs[victim].sendSignal(syscall.SIGCONT)
	procs[victim].checkFault()
}

// checkLate checks the outcomes of the ranks other than a stopped victim. At least one must be a
// TimeoutError about the victim, and perhaps about other ranks. The others can be ErrFault.
//
// One other error is correct. If rank 2 stops after its last message has reached rank 0 but not
// rank 1, then rank 0 waits only for rank 1, and rank 1 waits for rank 2. Rank 0 can then get a
// TimeoutError about rank 1. It says that rank 1 is "in Barrier", the call that the ranks compare.
func (procs processes) checkLate(victim int) {
	timeouts := 0 // about the victim
	for _, p := range procs.except(victim) {
		o := p.awaitEvent("outcome")
		isAboutVictim := slices.Contains(o.Ranks, victim)
		isAboutBarrier := strings.Contains(o.Text, "in Barrier")
		switch {
		case o.Kind == "late" && isAboutVictim:
			timeouts++
		case o.Kind == "late" && isAboutBarrier: // correct, too
		case o.Kind != "fault":
			p.rejectOutcome(o, fmt.Sprintf(`kind "late", rank %d`, victim))
		}

		p.checkReports(o, victim)
	}

	if timeouts == 0 {
		procs[victim].t.Errorf("no rank got a TimeoutError about rank %d", victim)
	}
}

// checkFault checks that the outcome of a resumed rank is ErrFault. A RankLostError or TimeoutError
// would be wrong, because the other ranks were neither lost nor late.
func (p *process) checkFault() {
	p.t.Helper()
	o := p.awaitEvent("outcome")
	if o.Kind != "fault" {
		p.rejectOutcome(o, `kind "fault"`)
	}
}

// testStoppedInFetch lets rank 2 stop while it fetches memory of rank 1. The others wait for rank 2
// in an exchange. Rank 0 has the shortest timeout, and must get an error about rank 2 only.
func testStoppedInFetch(t *testing.T, _ Join) {
	const victim = 2
	storeAddress := serveStore(t)
	timeouts := [groupSize]time.Duration{shortTimeout, hangTimeout, hangTimeout} // by rank
	var procs processes
	for rank, timeout := range timeouts {
		procs = append(procs, startProcess(t, rank, program{
			WaitName: fetchProgram,
			Store:    storeAddress,
			Rank:     rank,
			Size:     groupSize,
			Timeout:  timeout,
		}))
	}

	procs[victim].awaitStop() // rank 2 stops without a signal from this test
	startExchange(t, storeAddress)
	o := procs[0].awaitEvent("outcome")
	isAboutVictim := slices.Equal(o.Ranks, []int{victim})
	if o.Kind != "late" || !isAboutVictim {
		procs[0].rejectOutcome(o, fmt.Sprintf(`kind "late", rank %d`, victim))
	}
}

// startExchange lets rank 0 begin the exchange of testStoppedInFetch. It sets stoppedKey in the
// store that the ranks share. Rank 0 has waited for this key.
func startExchange(t *testing.T, storeAddress string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangTimeout)
	defer cancel()
	client, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: storeAddress})
	must(t, err)
	setErr := client.Set(ctx, stoppedKey, nil)
	closeErr := client.Close()
	must(t, errors.Join(setErr, closeErr))
}

// testResumedRank stops rank 2 until the others have timed out, and resumes it while they wait for
// its report. Rank 2 must notice from their messages that they were not late.
func testResumedRank(t *testing.T, _ Join) {
	const victim = 2
	for _, waitName := range []string{"a comparison", "an exchange"} {
		t.Run("in "+waitName, func(t *testing.T) {
			procs := startProcesses(t, groupSize, waitName, shortTimeout)
			procs[victim].sendSignal(syscall.SIGSTOP)
			procs[0].awaitEvent("failed")
			procs[1].awaitEvent("failed")
			procs[victim].sendSignal(syscall.SIGCONT)
			procs[victim].checkFault()
		})
	}
}

// testExitAfterLeaving lets rank 1 announce some work, leave the group and exit. Rank 0 waits for
// this work, which never completes, until a deadline. If the wait ends at the deadline and not
// before, the outcome of rank 0 has the kind "cancelled".
func testExitAfterLeaving(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveProgram, hangTimeout)
	err := procs[1].command.Wait() // until the process has exited
	if err != nil {
		t.Error(err)
	}

	o := procs[0].awaitEvent("outcome")
	if o.Kind != "cancelled" {
		procs[0].rejectOutcome(o, `kind "cancelled"`)
	}
}
