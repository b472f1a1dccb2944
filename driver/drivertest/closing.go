package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"symmem/driver"
)

// These tests close groups. For example, rank 0 waits in a barrier, and rank 1 closes its part of
// the group. Then the barrier can never complete, so rank 0 must get an error.
//
// newWorld opens ranks, each with a device, a stream and a group of all ranks.

var closingRequirements = []requirement{
	{"calls of a closed group return ErrClosed", testGroupClosed},
	{"closing a group deregisters its windows", testCloseDeregisters},
	{"Close ends the waits of its rank", testCloseOwnWaits},
	{"Close ends the waits of other ranks", testCloseOthersWaits},
	{"Close and Abort may be called while any other call runs", testCloseAnytime},
	{"a device can be opened and closed repeatedly", testReopen},
}

// testGroupClosed closes a group twice, and then calls other methods. The stream must not have
// failed.
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

// testCloseDeregisters registers a segment of memory as a window with a group, and closes the
// group. The segment can then be registered with another group.
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

const checkingCalls = true // argument of rank.connect: ranks compare their calls

// waitingCalls holds calls that wait for the other rank of a group, by name. b is a segment that is
// not registered.
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

// testCloseOwnWaits closes the group on rank 0, whose own call waits for rank 1.
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

// testCloseOthersWaits closes the group on rank 1 while rank 0 waits for rank 1.
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
				// If rank 0 knows that rank 1 has closed the group, the error is a DeadlockError.
				var deadlock *driver.DeadlockError
				isDeadlock := errors.As(err, &deadlock)
				if !isDeadlock && !errors.Is(err, driver.ErrFault) {
					r.failf("got %v, want a DeadlockError or ErrFault", err)
				}
			})
		})
	}
}

// testCloseAnytime opens and closes many groups in one world.
func testCloseAnytime(t *testing.T, h Harness) {
	h.require(t, Anytime)
	w := newWorld(t, h, 2, options{noGroup: true, allowFaults: true})
	for round := range 60 {
		w.onEachRank(func(r *rank) { closeGroupInUse(r, round) })
	}
}

// closeGroupInUse connects a group and closes it while other goroutines make calls. In some rounds,
// it calls Abort first. round is the number of groups before it.
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
			for call() == nil { // repeat the call until the group is closed
				continue
			}
		})
	}

	if (round+r.number)%3 == 0 {
		c.Abort(nil)
	}

	groupErr := c.Close()
	callers.Wait()
	streamErr := s.Close()
	if streamErr == nil && c.Cause() == nil {
		r.failf("the closed group has no Cause, and its stream has no error")
	}

	r.must(groupErr)
}

// testReopen opens and closes five worlds, one after the other.
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
