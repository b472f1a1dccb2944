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

// lostRequirements are sentences about ranks whose processes are killed, stopped or exit. Their
// tests start processes that run the binary of the test again.
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

// testKilledRank kills rank 0 or 1 of three while all ranks repeat one kind of wait; see
// waitFunctions.
func testKilledRank(t *testing.T, _ Join) {
	for name := range waitFunctions {
		for victim := range 2 {
			t.Run(fmt.Sprintf("rank %d in %s", victim, name), func(t *testing.T) {
				procs := startProcesses(t, 3, name, hangTimeout)
				procs[victim].sendSignal(syscall.SIGKILL)
				procs.awaitOutcomes("lost", victim)
			})
		}
	}
}

// testKilledWithoutWaits kills rank 2 while the other ranks poll PeerFailed and wait for nothing.
func testKilledWithoutWaits(t *testing.T, _ Join) {
	procs := startProcesses(t, 3, idleProgram, hangTimeout)
	procs[2].sendSignal(syscall.SIGKILL)
	procs.awaitOutcomes("lost", 2)
}

// testStoppedRank stops rank 2 until the other ranks have timed out. When it resumes, it must
// notice their faults.
func testStoppedRank(t *testing.T, _ Join) {
	procs := startProcesses(t, 3, "a comparison", shortTimeout)
	procs[2].sendSignal(syscall.SIGSTOP)
	procs.awaitOutcomes("late", 2)
	procs[2].sendSignal(syscall.SIGCONT)
	procs[2].awaitFaultOutcome()
}

// testStoppedInFetch lets rank 2 stop while it waits for the memory of another rank. Rank 0, which
// has the shortest timeout, must report only rank 2 as late.
func testStoppedInFetch(t *testing.T, _ Join) {
	store := serveStore(t)
	var procs processes
	timeouts := []time.Duration{shortTimeout, hangTimeout, hangTimeout} // by rank
	for rank, timeout := range timeouts {
		procs = append(procs, startProcess(t, rank, program{
			WaitName: fetchProgram,
			Store:    store,
			Rank:     rank,
			Size:     len(timeouts),
			Timeout:  timeout,
		}))
	}

	procs[2].awaitStop()
	ctx, cancel := context.WithTimeout(t.Context(), hangTimeout)
	defer cancel()
	client, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: store})
	must(t, err)
	// Rank 0 waits for this key before it enters the exchange.
	setErr := client.Set(ctx, stoppedKey, nil)
	closeErr := client.Close()
	must(t, errors.Join(setErr, closeErr))
	outcome := procs[0].awaitEvent("outcome")
	if outcome.Kind != "late" || !slices.Equal(outcome.Ranks, []int{2}) {
		t.Errorf("rank 0 got kind %q, ranks %v (%s); want kind \"late\", rank 2",
			outcome.Kind, outcome.Ranks, outcome.Text)
	}
}

// testResumedRank stops rank 2 until the others have timed out and wait for its report, and then
// resumes it. Rank 2 must notice from their messages that they were not late.
func testResumedRank(t *testing.T, _ Join) {
	for _, name := range []string{"a comparison", "an exchange"} {
		t.Run("in "+name, func(t *testing.T) {
			procs := startProcesses(t, 3, name, shortTimeout)
			procs[2].sendSignal(syscall.SIGSTOP)
			procs[0].awaitEvent("failed")
			procs[1].awaitEvent("failed")
			procs[2].sendSignal(syscall.SIGCONT)
			procs[2].awaitFaultOutcome()
		})
	}
}

// awaitFaultOutcome checks that a rank ends with an ErrFault and not with an error about late or
// lost ranks.
func (p *process) awaitFaultOutcome() {
	p.t.Helper()
	if o := p.awaitEvent("outcome"); o.Kind != "fault" {
		p.t.Errorf("rank %d got kind %q, ranks %v (%s); want kind \"fault\"",
			p.rank, o.Kind, o.Ranks, o.Text)
	}
}

// testExitAfterLeaving lets rank 1 submit a ticket, leave and exit. Rank 0 waits for the work of
// this ticket until the deadline of its context.
func testExitAfterLeaving(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveProgram, hangTimeout) // see program.leave
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}

	if o := procs[0].awaitEvent("outcome"); o.Kind != "cancelled" {
		t.Errorf("outcome of rank 0 = %+v, want kind \"cancelled\"", o)
	}
}

// awaitOutcomes reads the outcomes of all ranks except the victim. At least one must be an error of
// the given kind about the victim: "lost" or "late". Other ranks can get an ErrFault, because they
// first learn of another rank's failure. The ranks must have received the fault reports of each
// other and none from the victim.
//
// A victim can stop when only one other rank has its messages. This rank can return an error about
// the third rank instead, which is late in Barrier.
func (procs processes) awaitOutcomes(kind string, victim int) {
	errorCount := 0 // errors about the victim
	for _, p := range procs {
		if p.rank == victim {
			continue
		}

		o := p.awaitEvent("outcome")
		// A timeout can list other late ranks, too.
		isAboutVictim := slices.Equal(o.Ranks, []int{victim}) ||
			(kind == "late" && slices.Contains(o.Ranks, victim))
		isAboutBarrier := kind == "late" && strings.Contains(o.Text, "in Barrier")
		switch {
		case o.Kind == kind && isAboutVictim:
			errorCount++
		case o.Kind == kind && isAboutBarrier: // allowed
		case o.Kind != "fault":
			p.t.Errorf("rank %d got kind %q, ranks %v (%s); want kind %q, rank %d",
				p.rank, o.Kind, o.Ranks, o.Text, kind, victim)
		}

		wantReports := []bool{victim != 0, victim != 1, victim != 2} // by rank
		if !slices.Equal(o.HasReported, wantReports) {
			p.t.Errorf("rank %d received reports %v, want %v", p.rank, o.HasReported, wantReports)
		}

		if kind == "lost" && !slices.Equal(o.Lost, []int{victim}) {
			p.t.Errorf("rank %d: Departed() lists lost ranks %v, want [%d]", p.rank, o.Lost, victim)
		}
	}

	if errorCount == 0 {
		procs[victim].t.Errorf("no rank got an error of kind %q about rank %d", kind, victim)
	}
}
