package controltest

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

var lostContracts = []contract{
	{"a killed rank is named by the others, which continue without it", proveKilled},
	{"a rank killed while no rank waits is detected before the next launch", proveKilledIdle},
	{"a rank that is stopped is missing", proveStopped},
	{"a rank that resumes after the timeout names no rank that has arrived", proveResumed},
	{"a rank whose process ends after leaving is not lost", proveEnded},
}

func proveKilled(t *testing.T, _ Join) {
	for name := range waits {
		for victim := range 2 {
			t.Run(fmt.Sprintf("rank %d in %s", victim, name), func(t *testing.T) {
				c := startProcesses(t, 3, name, patience)
				c[victim].signal(syscall.SIGKILL)
				c.wantNamed("lost", victim)
			})
		}
	}
}

func proveKilledIdle(t *testing.T, _ Join) {
	c := startProcesses(t, 3, idling, patience)
	c[2].signal(syscall.SIGKILL)
	c.wantNamed("lost", 2)
}

func proveStopped(t *testing.T, _ Join) {
	c := startProcesses(t, 3, "a comparison", short)
	c[2].signal(syscall.SIGSTOP)
	c.wantNamed("late", 2)
	c[2].signal(syscall.SIGCONT)
	c[2].wantFault()
}

// proveResumed resumes a stopped rank while the others, which have timed out, wait for its report.
// At that time it has not read their messages yet, nor that they had arrived.
func proveResumed(t *testing.T, _ Join) {
	for _, name := range []string{"a comparison", "an exchange"} {
		t.Run("in "+name, func(t *testing.T) {
			c := startProcesses(t, 3, name, short)
			c[2].signal(syscall.SIGSTOP)
			c[0].await("failed")
			c[1].await("failed")
			c[2].signal(syscall.SIGCONT)
			c[2].wantFault()
		})
	}
}

// wantFault reads the outcome of a rank after the others have failed. It must not name a rank.
func (a *process) wantFault() {
	a.t.Helper()
	if o := a.await("outcome"); o.Kind != "fault" {
		a.t.Errorf("rank %d ended by %s of %v (%s), but the others were there",
			a.rank, o.Kind, o.Ranks, o.Text)
	}
}

// proveEnded waits for work that a rank had submitted before its process exited normally.
func proveEnded(t *testing.T, _ Join) {
	c := startProcesses(t, 2, leaving, patience)
	if err := c[1].command.Wait(); err != nil {
		t.Error(err)
	}
	if o := c[0].await("outcome"); o.Kind != "cancelled" {
		t.Errorf("the wait of the other rank ended by %+v", o)
	}
}

// wantNamed reads the outcomes of all ranks except the victim. At least one must name the victim
// with an error of the given kind. The others may have received the fault before they detected
// anything. All must have met on the fault lane without the victim. A stopped victim may have sent
// its arrival to only one of the others, even for two steps. That rank is then one step ahead, and
// waits for the third rank, alone or together with the victim.
func (c processes) wantNamed(kind string, victim int) {
	named := 0
	for _, a := range c {
		if a.rank == victim {
			continue
		}
		o := a.await("outcome")
		switch {
		case o.Kind == kind && (slices.Equal(o.Ranks, []int{victim}) ||
			kind == "late" && slices.Contains(o.Ranks, victim)):
			named++
		case kind == "late" && o.Kind == kind && strings.Contains(o.Text, "in Barrier"):
		case o.Kind != "fault":
			a.t.Errorf("rank %d ended by %s of %v (%s), want %s of rank %d",
				a.rank, o.Kind, o.Ranks, o.Text, kind, victim)
		}
		if want := []bool{victim != 0, victim != 1, victim != 2}; !slices.Equal(o.Present, want) {
			a.t.Errorf("rank %d met %v on the fault lane, want %v", a.rank, o.Present, want)
		}
	}
	if named == 0 {
		c[victim].t.Errorf("no rank has named rank %d", victim)
	}
}
