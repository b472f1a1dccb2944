package controltest

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

var lostContracts = []contract{
	{"a rank that is killed is named by the others, who go on without it", proveKilled},
	{"a rank that is killed while nobody waits is known before the next launch", proveKilledIdle},
	{"a rank that is stopped is missing", proveStopped},
	{"a rank that goes on after the timeout names no rank that has come", proveGoingOn},
	{"a rank whose process ends after it has left is not lost", proveEnded},
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

// proveGoingOn has a rank go on while the others, which miss it, wait for its report. By then it
// has not read their messages, nor that they had come.
func proveGoingOn(t *testing.T, _ Join) {
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

// wantFault reads the outcome of a rank for which others have failed: it has no rank to name.
func (a *process) wantFault() {
	a.t.Helper()
	if o := a.await("outcome"); o.Kind != "fault" {
		a.t.Errorf("rank %d ended by %s of %v (%s), but the others were there",
			a.rank, o.Kind, o.Ranks, o.Text)
	}
}

// proveEnded waits for work that a rank had submitted before its process ended in good order.
func proveEnded(t *testing.T, _ Join) {
	c := startProcesses(t, 2, leaving, patience)
	if err := c[1].command.Wait(); err != nil {
		t.Error(err)
	}
	if o := c[0].await("outcome"); o.Kind != "cancelled" {
		t.Errorf("the wait of the other rank ended by %+v", o)
	}
}

// wantNamed reads the outcomes of all ranks but one. At least one must name it with an error of
// the given kind; the others may have heard of the fault before they noticed themselves. All must
// have met on the fault lane without it. A rank that is stopped may have told one of the others
// alone that it has come, even to two steps, who is a step ahead then, and waits for the third
// rank, too, or for that one alone.
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
