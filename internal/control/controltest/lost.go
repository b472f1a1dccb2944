package controltest

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

var lostContracts = []contract{
	{"the other ranks report a killed rank, and exchange reports without it", testKilled},
	{"a rank killed while no rank waits is detected before the next launch", testKilledIdle},
	{"a stopped rank is missing", testStopped},
	{"a rank that resumes after the timeout blames no other rank", testResumed},
	{"a rank whose process exits after leaving is not lost", testEnded},
}

func testKilled(t *testing.T, _ Join) {
	for name := range waits {
		for victim := range 2 {
			t.Run(fmt.Sprintf("rank %d in %s", victim, name), func(t *testing.T) {
				procs := startProcesses(t, 3, name, patience)
				procs[victim].signal(syscall.SIGKILL)
				procs.checkReported("lost", victim)
			})
		}
	}
}

func testKilledIdle(t *testing.T, _ Join) {
	procs := startProcesses(t, 3, idleProgram, patience)
	procs[2].signal(syscall.SIGKILL)
	procs.checkReported("lost", 2)
}

func testStopped(t *testing.T, _ Join) {
	procs := startProcesses(t, 3, "a comparison", shortTimeout)
	procs[2].signal(syscall.SIGSTOP)
	procs.checkReported("late", 2)
	procs[2].signal(syscall.SIGCONT)
	procs[2].checkFault()
}

// testResumed stops a rank until the other ranks have timed out and are waiting for its report,
// and then resumes it. The other ranks' messages, which show that they arrived in time, have
// reached the rank, but it has not read them yet.
func testResumed(t *testing.T, _ Join) {
	for _, name := range []string{"a comparison", "an exchange"} {
		t.Run("in "+name, func(t *testing.T) {
			procs := startProcesses(t, 3, name, shortTimeout)
			procs[2].signal(syscall.SIGSTOP)
			procs[0].await("failed")
			procs[1].await("failed")
			procs[2].signal(syscall.SIGCONT)
			procs[2].checkFault()
		})
	}
}

// checkFault reads a rank's outcome after another rank has failed. The rank must report only a
// fault, without blaming any rank.
func (p *process) checkFault() {
	p.t.Helper()
	if o := p.await("outcome"); o.Kind != "fault" {
		p.t.Errorf("rank %d got kind %q, ranks %v (%s); want a fault, because the others had arrived",
			p.rank, o.Kind, o.Ranks, o.Text)
	}
}

func testEnded(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveProgram, patience)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}
	if o := procs[0].await("outcome"); o.Kind != "cancelled" {
		t.Errorf("outcome of rank 0 = %+v, want a canceled wait", o)
	}
}

// checkReported reads the outcomes of all ranks except the victim. At least one of them must be
// an error of the given kind about the victim. The others may be faults of peers, which a rank
// may receive before it detects the victim's loss itself. The ranks must have received each
// other's reports, and none from the victim.
//
// A victim may be stopped after it has sent messages for up to two steps to only one of the other
// ranks. That rank is then one step ahead of the third rank, and may report that rank as late in
// Barrier.
func (procs processes) checkReported(kind string, victim int) {
	reports := 0
	for _, p := range procs {
		if p.rank == victim {
			continue
		}
		o := p.await("outcome")
		switch {
		case o.Kind == kind && (slices.Equal(o.Ranks, []int{victim}) ||
			kind == "late" && slices.Contains(o.Ranks, victim)):
			reports++
		case kind == "late" && o.Kind == kind && strings.Contains(o.Text, "in Barrier"):
		case o.Kind != "fault":
			p.t.Errorf("rank %d got kind %q, ranks %v (%s); want kind %q, rank %d",
				p.rank, o.Kind, o.Ranks, o.Text, kind, victim)
		}
		if want := []bool{victim != 0, victim != 1, victim != 2}; !slices.Equal(o.Present, want) {
			p.t.Errorf("rank %d received reports from ranks %v, want %v", p.rank, o.Present, want)
		}
		if kind == "lost" && !slices.Equal(o.Lost, []int{victim}) {
			p.t.Errorf("rank %d: Departed() = lost ranks %v; want rank %d", p.rank, o.Lost, victim)
		}
	}
	if reports == 0 {
		procs[victim].t.Errorf("no rank got an error of kind %q about rank %d", kind, victim)
	}
}
