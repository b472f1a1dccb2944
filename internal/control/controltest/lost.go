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

// These tests kill or stop one process of a group, the victim, while the ranks repeat a wait for
// each other. Each surviving rank prints the event "failed", exchanges fault reports, and prints an
// outcome: the kind of its error and the ranks that the error names.
//
// The kinds are "lost" for a RankLostError, "late" for a TimeoutError, and "fault" for ErrFault,
// which reports the failure of another survivor.

const groupSize = 3

// lostRequirements have tests that ignore their Join, because the processes get it from Main.
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
		for _, victim := range []int{0, 1} { // rank 0 can have special tasks in a group
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
		isAboutVictim := slices.Equal(o.Ranks, []int{victim})
		switch {
		case o.Kind == "lost" && isAboutVictim:
			lostErrors++
		case o.Kind != "fault":
			p.rejectOutcome(o, fmt.Sprintf(`kind "lost", rank %d`, victim))
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

func (p *process) rejectOutcome(o output, want string) {
	p.t.Helper()
	p.t.Errorf("rank %d got kind %q, ranks %v (%s); want %s", p.rank, o.Kind, o.Ranks, o.Text, want)
}

// checkReports checks that p received fault reports of all survivors, including p itself.
func (p *process) checkReports(o output, victim int) {
	p.t.Helper()
	wantReports := slices.Repeat([]bool{true}, groupSize)
	wantReports[victim] = false
	if !slices.Equal(o.HasReported, wantReports) {
		p.t.Errorf("rank %d received reports %v, want %v", p.rank, o.HasReported, wantReports)
	}
}

// A rank that resumes after the others have failed notices their failure.
func testStoppedRank(t *testing.T, _ Join) {
	const victim = 2
	procs := startProcesses(t, groupSize, "a comparison", shortTimeout)
	procs[victim].sendSignal(syscall.SIGSTOP)
	procs.checkLate(victim)
	procs[victim].sendSignal(syscall.SIGCONT)
	procs[victim].checkFault()
}

// checkLate expects a TimeoutError about the victim from at least one survivor. If the victim
// stopped between its messages to the two survivors, one of them waits only for the other. Its
// TimeoutError then names a survivor that is "in Barrier", the call that the ranks compare.
func (procs processes) checkLate(victim int) {
	timeouts := 0
	for _, p := range procs.except(victim) {
		o := p.awaitEvent("outcome")
		isAboutVictim := slices.Contains(o.Ranks, victim)
		isAboutSurvivor := strings.Contains(o.Text, "in Barrier")
		switch {
		case o.Kind == "late" && isAboutVictim:
			timeouts++
		case o.Kind == "late" && isAboutSurvivor:
		case o.Kind != "fault":
			p.rejectOutcome(o, fmt.Sprintf(`kind "late", rank %d`, victim))
		}

		p.checkReports(o, victim)
	}

	if timeouts == 0 {
		procs[victim].t.Errorf("no rank got a TimeoutError about rank %d", victim)
	}
}

// checkFault expects ErrFault from a resumed rank, because the others were neither lost nor late.
func (p *process) checkFault() {
	p.t.Helper()
	o := p.awaitEvent("outcome")
	if o.Kind != "fault" {
		p.rejectOutcome(o, `kind "fault"`)
	}
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
	o := procs[0].awaitEvent("outcome")
	isAboutVictim := slices.Equal(o.Ranks, []int{victim})
	if o.Kind != "late" || !isAboutVictim {
		procs[0].rejectOutcome(o, fmt.Sprintf(`kind "late", rank %d`, victim))
	}
}

// startExchange sets the key for which rank 0 waits before the exchange of testStoppedInFetch.
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
			procs[victim].checkFault()
		})
	}
}

// Rank 1 submits work, leaves and exits. Rank 0 waits for the work, which never completes, until
// its context ends.
func testExitAfterLeaving(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveProgram, hangTimeout)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}

	o := procs[0].awaitEvent("outcome")
	if o.Kind != "cancelled" {
		procs[0].rejectOutcome(o, `kind "cancelled"`)
	}
}
