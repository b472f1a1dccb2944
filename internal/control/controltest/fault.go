package controltest

import (
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

var faultContracts = []contract{
	{"Abort ends the waits of all ranks", proveAbort},
	{"Fail takes the others out of their waits and returns its error", proveFail},
	{"the first fault is the cause", proveFirst},
	{"a rank that has left does not hold up the fault lane", proveFaultLaneLeft},
}

// proveWaitsEnd has rank 0 cause a fault while each of the others waits in a different way.
func proveWaitsEnd(t *testing.T, join Join, cause func(p control.Plane) error) {
	t.Helper()
	w := newWorld(t, join, 4, patience)
	names := []string{"", "a comparison", "a wait for work", "an exchange"}
	w.each(t, func(i int, p control.Plane) error {
		if i == 0 {
			return cause(p)
		}
		// Waits in different calls may detect their deadlock first.
		err := waits[names[i]](p)
		if !errors.Is(err, driver.ErrFault) && !errors.As(err, new(*driver.DeadlockError)) {
			return fmt.Errorf("%s: got %w, want ErrFault", names[i], err)
		}
		<-p.Failed()
		return nil
	})
}

func proveAbort(t *testing.T, join Join) {
	for _, cause := range []error{nil, errors.New("the user's")} {
		want := cause
		if cause == nil {
			want = driver.ErrAborted
		}
		proveWaitsEnd(t, join, func(p control.Plane) error {
			p.Abort(cause)
			<-p.Failed()
			if ticket, ok := p.TrySubmit(); ok {
				return fmt.Errorf("TrySubmit of a failed plane returned ticket %d", ticket)
			}
			for name, wait := range waits {
				if err := wait(p); !errors.Is(err, want) {
					return fmt.Errorf("%s: got %w, want the cause", name, err)
				}
			}
			return nil
		})
	}
}

func proveFail(t *testing.T, join Join) {
	cause := errors.New("a GPU has fallen off the bus")
	proveWaitsEnd(t, join, func(p control.Plane) error {
		if err := p.Fail(cause); !errors.Is(err, cause) {
			return fmt.Errorf("got %w, want the error itself", err)
		}
		<-p.Failed()
		return nil
	})
}

func proveFirst(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p, first, second := w.planes[0], errors.New("first"), errors.New("second")
	must(t, wantOpen(p))
	wantError(t, "the first Fail", p.Fail(first), first)
	wantError(t, "the second Fail", p.Fail(second), second)
	p.Abort(nil)
	wantError(t, "the cause", p.Cause(), first)
	awaitPeerFailed(w.planes[1])
}

func proveFaultLaneLeft(t *testing.T, join Join) {
	w := newWorld(t, join, 3, patience)
	must(t, w.planes[0].Close())
	w.each(t, func(i int, p control.Plane) error {
		if i == 0 {
			return nil
		}
		got, err := p.Exchange(w.ctx, driver.LaneFault, []byte("here"))
		if err != nil {
			return err
		}
		if got[0] != nil || string(got[1]) != "here" || string(got[2]) != "here" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}
