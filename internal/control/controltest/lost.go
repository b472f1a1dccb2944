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
// each other. The survivors exchange fault reports, and get outcomes of the kind "lost" for a
// RankLostError, "late" for a TimeoutError, or "fault" if another survivor failed first.

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
	{"a rank that resumes after the timeout gets ErrFault", testResumedRank},
	{
		"a rank that leaves the group before its process exits causes no RankLostError",
		testExitAfterLeaving,
	},
}

func testKilledRank(t *testing.T, _ Join) {
	for waitName := range waitFunctions {
		for _, victim := range []int{0, 1} { // rank 0 may be a coordinator
			testName := fmt.Sprintf("rank %d in %s", victim, waitName)
			t.Run(testName, func(t *testing.T) {
				procs := startProcesses(t, groupSize, waitName, hangTimeout)
				procs[victim].sendSignal(syscall.SIGKILL)
				procs.checkLost(t, victim)
			})
		}
	}
}

func testKilledWithoutWaits(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, idleTask, hangTimeout)
	procs[victim].sendSignal(syscall.SIGKILL)
	procs.checkLost(t, victim)
}

// checkLost expects a RankLostError about the victim from at least one survivor.
func (procs processes) checkLost(t *testing.T, victim int) {
	t.Helper()
	lostErrors := 0
	for _, p := range procs.survivorsOf(victim) {
		e := p.awaitOutcome()
		anotherFailedFirst := e.Kind == "fault"
		if !anotherFailedFirst {
			p.checkOutcome(e, "lost", victim)
			lostErrors++
		}

		p.checkReports(e, victim)
		if !slices.Equal(e.Lost, []int{victim}) {
			p.t.Errorf("rank %d: Departed() lists lost ranks %v, want [%d]", p.rank, e.Lost, victim)
		}
	}

	if lostErrors == 0 {
		t.Errorf("no rank got a RankLostError about rank %d", victim)
	}
}

func (procs processes) survivorsOf(victim int) []*process {
	return slices.Delete(slices.Clone(procs), victim, victim+1)
}

// checkOutcome checks the kind of an outcome, and that its error lists exactly wantRanks.
func (p *process) checkOutcome(e event, wantKind string, wantRanks ...int) {
	p.t.Helper()
	if e.Kind != wantKind || !slices.Equal(e.Ranks, wantRanks) {
		p.t.Errorf("rank %d got kind %q, ranks %v (%s); want kind %q, ranks %v",
			p.rank, e.Kind, e.Ranks, e.Text, wantKind, wantRanks)
	}
}

// checkReports checks that p received the fault reports of all survivors, including its own.
func (p *process) checkReports(e event, victim int) {
	p.t.Helper()
	wantReports := slices.Repeat([]bool{true}, groupSize)
	wantReports[victim] = false
	if !slices.Equal(e.HasReported, wantReports) {
		p.t.Errorf("rank %d received reports %v, want %v", p.rank, e.HasReported, wantReports)
	}
}

func testStoppedRank(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, "a comparison", shortTimeout)
	procs[victim].sendSignal(syscall.SIGSTOP)
	procs.checkLate(t, victim)
	procs[victim].sendSignal(syscall.SIGCONT)
	procs[victim].checkOutcome(procs[victim].awaitOutcome(), "fault")
}

// checkLate expects a TimeoutError about the victim from at least one survivor. A survivor that
// the victim's last message has reached can time out waiting for the other, which is in Barrier.
func (procs processes) checkLate(t *testing.T, victim int) {
	t.Helper()
	timeouts := 0
	for _, p := range procs.survivorsOf(victim) {
		e := p.awaitOutcome()
		isTimeout := e.Kind == "late"
		isAboutVictim := slices.Contains(e.Ranks, victim)
		isAboutSurvivor := strings.Contains(e.Text, "in Barrier")
		switch {
		case isTimeout && isAboutVictim:
			timeouts++
		case isTimeout && isAboutSurvivor, e.Kind == "fault":
		default:
			t.Errorf("rank %d got %+v, want a timeout about rank %d or a fault", p.rank, e, victim)
		}

		p.checkReports(e, victim)
	}

	if timeouts == 0 {
		t.Errorf("no rank got a TimeoutError about rank %d", victim)
	}
}

// The victim stops while it fetches memory of rank 1. Rank 0 then times out in an exchange.
func testStoppedInFetch(t *testing.T, _ Join) {
	const victim = 2
	storeAddress := serveStore(t)
	var procs processes
	timeouts := []time.Duration{shortTimeout, hangTimeout, hangTimeout} // by rank
	for rank, timeout := range timeouts {
		procs = append(procs, startProcess(t, rankConfig{
			Task:    fetchTask,
			Store:   storeAddress,
			Rank:    rank,
			Size:    groupSize,
			Timeout: timeout,
		}))
	}

	procs[victim].awaitStop()
	startExchange(t, storeAddress)
	procs[0].checkOutcome(procs[0].awaitOutcome(), "late", victim)
}

// startExchange sets stoppedKey, for which rank 0 waits before its exchange.
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

// The victim resumes while the others wait for its fault report.
func testResumedRank(t *testing.T, _ Join) {
	const victim = 2
	for _, waitName := range []string{"a comparison", "an exchange"} {
		t.Run("in "+waitName, func(t *testing.T) {
			procs := startProcesses(t, groupSize, waitName, shortTimeout)
			procs[victim].sendSignal(syscall.SIGSTOP)
			procs[0].awaitEvent("failed")
			procs[1].awaitEvent("failed")
			procs[victim].sendSignal(syscall.SIGCONT)
			procs[victim].checkOutcome(procs[victim].awaitOutcome(), "fault")
		})
	}
}

// Rank 1 submits work that never completes, leaves and exits. Rank 0 waits for the work until the
// context of the wait ends.
func testExitAfterLeaving(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveTask, hangTimeout)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}

	procs[0].checkOutcome(procs[0].awaitOutcome(), "canceled")
}
