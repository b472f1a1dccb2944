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

// These tests kill or stop one process of a group, the victim, while all ranks repeatedly wait for
// each other. The survivors exchange fault reports and print outcomes, for example
// {"Kind":"lost","Ranks":[1]} for a RankLostError about rank 1. A TimeoutError has the kind "late".
// ErrFault has the kind "fault", and means that another survivor failed first.

const groupSize = 3

// The tests ignore the argument join, because Main passes it to the processes.
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

func testKilledRank(t *testing.T, _ Join) {
	for waitName := range waitFunctions {
		for _, victim := range []int{0, 1} { // a plane may use rank 0 as a coordinator
			testName := fmt.Sprintf("rank %d in %s", victim, waitName)
			t.Run(testName, func(t *testing.T) {
				procs := startProcesses(t, groupSize, waitName, hangTimeout)
				procs[victim].sendSignal(syscall.SIGKILL)
				procs.checkLost(victim)
			})
		}
	}
}

func testKilledWithoutWaits(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, idleProgram, hangTimeout)
	procs[victim].sendSignal(syscall.SIGKILL)
	procs.checkLost(victim)
}

// checkLost expects a RankLostError about the victim from at least one survivor.
func (procs processes) checkLost(victim int) {
	lostErrors := 0
	for _, p := range procs.except(victim) {
		o := p.awaitEvent("outcome")
		if o.Kind != "fault" {
			p.checkOutcome(o, "lost", victim)
			lostErrors++
		}

		p.checkReports(o, victim)
		if !slices.Equal(o.Lost, []int{victim}) {
			p.t.Errorf("rank %d: Departed() lists lost ranks %v, want [%d]", p.rank, o.Lost, victim)
		}
	}

	if lostErrors == 0 {
		procs[victim].t.Errorf("no rank got a RankLostError about rank %d", victim)
	}
}

func (procs processes) except(rank int) processes {
	return slices.Delete(slices.Clone(procs), rank, rank+1)
}

// checkOutcome checks the kind of an outcome, and that its error names exactly wantRanks.
func (p *process) checkOutcome(o output, wantKind string, wantRanks ...int) {
	p.t.Helper()
	if o.Kind != wantKind || !slices.Equal(o.Ranks, wantRanks) {
		p.t.Errorf("rank %d got kind %q, ranks %v (%s); want kind %q, ranks %v",
			p.rank, o.Kind, o.Ranks, o.Text, wantKind, wantRanks)
	}
}

// checkReports checks that p received the fault reports of all survivors, including its own.
func (p *process) checkReports(o output, victim int) {
	p.t.Helper()
	wantReports := slices.Repeat([]bool{true}, groupSize)
	wantReports[victim] = false
	if !slices.Equal(o.HasReported, wantReports) {
		p.t.Errorf("rank %d received reports %v, want %v", p.rank, o.HasReported, wantReports)
	}
}

func testStoppedRank(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, "a comparison", shortTimeout)
	procs[victim].sendSignal(syscall.SIGSTOP)
	procs.checkLate(victim)
	procs[victim].sendSignal(syscall.SIGCONT)
	procs[victim].checkFault()
}

// checkLate expects a TimeoutError about the victim from at least one survivor. If the victim
// stopped between its messages to the two survivors, one survivor waits only for the other one. The
// TimeoutError then says that the other one is "in Barrier", the call that the ranks compare.
func (procs processes) checkLate(victim int) {
	timeouts := 0
	for _, p := range procs.except(victim) {
		o := p.awaitEvent("outcome")
		isAboutVictim := slices.Contains(o.Ranks, victim)
		isAboutSurvivor := strings.Contains(o.Text, "in Barrier")
		switch {
		case o.Kind == "fault":
		case o.Kind == "late" && isAboutVictim:
			timeouts++
		case o.Kind == "late" && isAboutSurvivor:
		default: // another kind, or a TimeoutError about no rank
			p.checkOutcome(o, "late", victim)
		}

		p.checkReports(o, victim)
	}

	if timeouts == 0 {
		procs[victim].t.Errorf("no rank got a TimeoutError about rank %d", victim)
	}
}

// checkFault expects ErrFault from a resumed rank, because the other ranks were never lost or late.
func (p *process) checkFault() {
	p.t.Helper()
	p.checkOutcome(p.awaitEvent("outcome"), "fault")
}

// The victim stops itself while it fetches memory of rank 1. The others wait for it in an exchange.
func testStoppedInFetch(t *testing.T, _ Join) {
	const victim = 2
	storeAddress := serveStore(t)
	timeoutByRank := [groupSize]time.Duration{shortTimeout, hangTimeout, hangTimeout}
	var procs processes
	for rank, timeout := range timeoutByRank {
		procs = append(procs, startProcess(t, rank, program{
			WaitName: fetchProgram,
			Store:    storeAddress,
			Rank:     rank,
			Size:     groupSize,
			Timeout:  timeout,
		}))
	}

	procs[victim].awaitStop()
	startExchange(t, storeAddress)
	procs[0].checkOutcome(procs[0].awaitEvent("outcome"), "late", victim)
}

// startExchange lets rank 0 begin the exchange of testStoppedInFetch.
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

// The victim resumes while the other ranks wait for its fault report.
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

// Rank 1 submits work that never completes, leaves and exits. Rank 0 waits for the work until the
// context of the wait ends.
func testExitAfterLeaving(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveProgram, hangTimeout)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}

	procs[0].checkOutcome(procs[0].awaitEvent("outcome"), "cancelled")
}
