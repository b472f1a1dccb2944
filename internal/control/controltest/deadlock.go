package controltest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

var deadlockContracts = []contract{
	{"ranks in different places find out at once", proveDeadlock},
	{"ranks in different places find out while other lanes are busy", proveDeadlockBesideLane},
	{"a rank that has left is not waited for", proveLeft},
	{"a rank that has left after it had submitted all is not missed", proveLeftAfterwards},
	{"a rank that has left and withdrawn what it had submitted is missed", proveWithdrawn},
}

func proveDeadlock(t *testing.T, join Join) {
	for _, name := range []string{"a comparison", "a wait for work"} {
		for _, alone := range []int{0, 2} {
			w := newWorld(t, join, 3, patience)
			WantDeadlock(t, w.outcomes(func(i int, p control.Plane) error {
				if i == alone {
					return waits["an exchange"](p)
				}
				return waits[name](p)
			}))
		}
	}
}

// proveDeadlockBesideLane has waits on the background lane begin and end all the while, so that
// what a rank says of one wait must not be lost with another.
func proveDeadlockBesideLane(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	WantDeadlock(t, w.outcomes(func(i int, p control.Plane) error {
		ended := make(chan error, 1)
		go func() {
			if i == 0 {
				ended <- waits["an exchange"](p)
				return
			}
			ended <- waits["a wait for work"](p)
		}()
		for round := 0; ; round++ {
			if w.swap(i, driver.LaneBackground, round, []int{1, 20000}) != nil {
				return <-ended
			}
		}
	}))
}

func proveLeft(t *testing.T, join Join) {
	for name, wait := range waits {
		w := newWorld(t, join, 2, patience)
		must(t, w.planes[1].Close())
		err := wait(w.planes[0])
		if !hasLeft(err) {
			t.Errorf("%s: got %v, want a DeadlockError of a rank that has left", name, err)
		}
	}
}

// proveWithdrawn has a rank leave whose second collective the other one had not submitted: the
// first has ended, and the second can never end.
// hasLeft reports whether an error is a DeadlockError of a rank that has left.
func hasLeft(err error) bool {
	return errors.As(err, new(*driver.DeadlockError)) &&
		strings.Contains(err.Error(), "has left the group")
}

func proveWithdrawn(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	here, there := w.planes[0], w.planes[1]
	there.Submit()
	first := never(here.Submit())
	first.Done = func() bool { return true }
	must(t, here.Await(w.ctx, first))
	// The exchange tells each of them what the other has submitted.
	w.outcomes(func(_ int, p control.Plane) error {
		_, err := p.Exchange(w.ctx, driver.LaneControl, nil)
		return err
	})
	there.Submit()
	if !there.Withdraw() {
		t.Error("a ticket was not taken back that one rank has submitted")
	}
	if late := there.Submit(); late == 0 {
		t.Error("a ticket that is not shown has no number")
	}
	must(t, there.Close())
	err := here.Await(w.ctx, never(here.Submit()))
	if !hasLeft(err) {
		t.Errorf("got %v, want a DeadlockError of a rank that has left", err)
	}
}

func proveLeftAfterwards(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.planes[1].Submit()
	must(t, w.planes[1].Close())
	p := w.planes[0]
	wait := never(p.Submit())
	ctx, cancel := context.WithCancel(w.ctx)
	looks := 0
	// By then the wait has looked for trouble again and again.
	wait.Done = func() bool {
		if looks++; looks == 5000 {
			cancel()
		}
		return false
	}
	wantError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, wantOpen(p))
}
