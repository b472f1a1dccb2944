package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"symmem/driver"
)

// Closing a group ends the calls that wait in it, on all ranks. For example, if rank 1 closes the
// group instead of entering a barrier, rank 0's barrier returns an error.
//
// newWorld opens n ranks, each with a device, a stream and a group of all ranks.

var closingRequirements = []requirement{
	{"calls of a closed group return ErrClosed", testGroupClosed},
	{"closing a group deregisters its windows", testCloseDeregisters},
	{"Close ends the waits of its rank", testCloseOwnWaits},
	{"Close ends the waits of other ranks", testCloseOthersWaits},
	{"Close and Abort may be called while any other call runs", testCloseAnytime},
	{"a device can be opened and closed repeatedly", testReopen},
}

// Calls of a closed group return ErrClosed, but do not make their stream fail.
func testGroupClosed(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{})
	r := w.ranks[0]
	b := r.newBuffer(1)
	plan, err := driver.Prepare(r.group, barrier)
	must(t, err)
	graph := r.capture(func() { r.must(r.group.Launch(r.stream, plan)) })
	must(t, r.group.Close())
	must(t, r.group.Close()) // a second Close has no effect
	<-r.group.Failed()
	wantError(t, "Cause", r.group.Cause(), driver.ErrClosed)
	wantError(t, "Launch", r.group.Launch(r.stream, plan), driver.ErrClosed)
	wantError(t, "Launch of a graph", graph.Launch(r.stream), driver.ErrClosed)
	for lane := range driver.Lanes {
		_, err = r.group.Exchange(w.ctx, lane, nil)
		wantError(t, fmt.Sprint("Exchange on lane ", lane), err, driver.ErrClosed)
	}

	_, err = r.group.Register(w.ctx, r.nextKey(), b.segment)
	wantError(t, "Register", err, driver.ErrClosed)
	r.group.Abort(nil)
	must(t, r.stream.Synchronize(w.ctx))
}

func testCloseDeregisters(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	w.onEachRank(func(r *rank) {
		c := r.connect("short-lived", firstNumbers(2), checkingCalls)
		b := r.newBuffer(1)
		window := r.register(c, r.nextKey(), b)
		closeErr := c.Close()
		deregisterErr := window.Deregister() // has no effect after Close
		r.must(errors.Join(closeErr, deregisterErr))
		b.window = r.register(r.group, r.nextKey(), b)
		r.checkMaximum(r.group, b, 5)
	})
}

const checkingCalls = true // the checkCalls argument of rank.connect

// waitingCalls are calls that wait until the other rank makes the same call. b is not registered.
var waitingCalls = map[string]func(r *rank, b buffer) error{
	"a collective": func(r *rank, _ buffer) error {
		return r.launchAndWait(r.group, r.stream, barrier)
	},
	"an exchange": func(r *rank, _ buffer) error {
		_, err := r.group.Exchange(r.world.ctx, driver.LaneControl, nil)
		return err
	},
	"an exchange on the background lane": func(r *rank, _ buffer) error {
		_, err := r.group.Exchange(r.world.ctx, driver.LaneBackground, nil)
		return err
	},
	"a registration": func(r *rank, b buffer) error {
		_, err := r.group.Register(r.world.ctx, r.nextKey(), b.segment)
		return err
	},
}

func testCloseOwnWaits(t *testing.T, h Harness) {
	for name, wait := range waitingCalls {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h, 2, options{allowFaults: true})
			r := w.ranks[0]
			b := r.newBuffer(1)
			result := make(chan error)
			go func() { result <- wait(r, b) }()
			must(t, r.group.Close()) // before or during the wait
			wantError(t, "the waiting call", <-result, driver.ErrClosed)
		})
	}
}

func testCloseOthersWaits(t *testing.T, h Harness) {
	for name, wait := range waitingCalls {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h, 2, options{allowFaults: true})
			w.onEachRank(func(r *rank) {
				if r.number == 1 {
					r.must(r.group.Close())
					return
				}

				err := wait(r, r.newBuffer(1))
				_, isDeadlock := errors.AsType[*driver.DeadlockError](err)
				if !isDeadlock && !errors.Is(err, driver.ErrFault) {
					r.failf("got %v, want a DeadlockError or ErrFault", err)
				}
			})
		})
	}
}

func testCloseAnytime(t *testing.T, h Harness) {
	h.require(t, Anytime)
	w := newWorld(t, h, 2, options{noGroup: true, allowFaults: true})
	for round := range 60 {
		w.onEachRank(func(r *rank) { closeGroupInUse(r, round) })
	}
}

// closeGroupInUse connects a new group, and closes it while other goroutines use it.
func closeGroupInUse(r *rank, round int) {
	c := r.connect(fmt.Sprint("round ", round), firstNumbers(2), checkingCalls)
	s, err := r.device.NewStream()
	r.must(err)
	exchange := func(lane driver.Lane) error {
		_, err := c.Exchange(r.world.ctx, lane, nil)
		return err
	}
	calls := []func() error{
		func() error { return r.queueCall(c, s, barrier) },
		func() error { return exchange(driver.LaneControl) },
		func() error { return exchange(driver.LaneBackground) },
	}
	var callers sync.WaitGroup
	for _, call := range calls {
		callers.Go(func() {
			for call() == nil {
				continue // until the group is closed
			}
		})
	}

	abortFirst := (round+r.number)%3 == 0
	if abortFirst {
		c.Abort(nil)
	}

	closeErr := c.Close()
	callers.Wait()
	streamErr := s.Close()
	if streamErr == nil && c.Cause() == nil {
		r.failf("the closed group has no Cause, and its stream has no error")
	}

	r.must(closeErr)
}

func testReopen(t *testing.T, h Harness) {
	for i := range 5 {
		t.Run(fmt.Sprint("opening ", i), func(t *testing.T) {
			w := newWorld(t, h, 3, options{checkCalls: true})
			w.onEachRank(func(r *rank) {
				r.checkMaximum(r.group, r.newWindow(1), 4)
			})
		})
	}
}
