package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"symmem/driver"
)

// A group contains some of the test's ranks, in any order. In the group [2 0 1], rank 2 of the test
// has group rank 0.

var groupRequirements = []requirement{
	{"subgroups run concurrently", testSubgroups},
	{"group ranks are numbered in the order of GroupConfig.Ranks", testGroupOrder},
	{"a group can be connected again under another name", testReconnect},
	{"connecting a group without this rank returns an error", testInvalidRank},
}

// Closing a group ends the waiting calls of all its ranks. If rank 1 closes the group instead of
// entering a barrier, rank 0's barrier returns an error.

var closingRequirements = []requirement{
	{"calls of a closed group return ErrClosed", testGroupClosed},
	{"closing a group deregisters its windows", testCloseDeregisters},
	{"Close ends the waits of its rank", testCloseOwnWaits},
	{"Close ends the waits of other ranks", testCloseOthersWaits},
	{"Close and Abort may be called while any other call runs", testCloseAnytime},
	{"a device can be opened and closed repeatedly", testReopen},
}

const gatherBytes = 128 // enough for checkAllGather

// checkAllGather gathers the rank numbers of c's members in b.
func checkAllGather(r *rank, c driver.Communicator, members []int, b buffer) {
	input, output := b.addressAt(0), b.addressAt(gatherBytes/2)
	r.write(input, []byte{byte(r.number)})
	call := driver.Call{
		Operation: driver.AllGather, DataType: driver.Uint8, Count: 1,
		Send: input, Recv: output, Digest: commonDigest,
	}
	r.setStep("group %v", members)
	r.must(r.launchAndWait(c, r.stream, call))
	var want []byte
	for _, number := range members {
		want = append(want, byte(number))
	}

	r.expectBytes(output, want)
}

func testSubgroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 4, options{checkCalls: true})
	halves := [][]int{{0, 2}, {1, 3}}
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(gatherBytes)
		half := r.number % 2
		c := r.connect(driver.GroupConfig{
			ID: fmt.Sprint("half ", half), Ranks: halves[half], Check: true,
		})
		for range 50 {
			checkAllGather(r, c, halves[half], b)
			checkAllGather(r, r.group, []int{0, 1, 2, 3}, b)
		}
	})
}

func testGroupOrder(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(gatherBytes)
		members := []int{2, 0, 1}
		c := r.connect(driver.GroupConfig{ID: "reordered", Ranks: members, Check: true})
		checkAllGather(r, c, members, b)
	})
}

func testReconnect(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(gatherBytes)
		members := []int{0, 1}
		for generation := range 3 {
			c := r.connect(driver.GroupConfig{
				ID: fmt.Sprint("generation ", generation), Ranks: members, Check: true,
			})
			checkAllGather(r, c, members, b)
			r.must(c.Close())
		}
	})
}

// GroupConfig.Rank must be an index of Ranks.
func testInvalidRank(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{noGroup: true})
	configs := []driver.GroupConfig{
		{ID: "empty"},
		{ID: "negative", Ranks: []int{0}, Rank: -1},
		{ID: "beyond", Ranks: []int{0}, Rank: 1},
	}
	for _, cfg := range configs {
		c, err := w.ranks[0].device.Connect(w.ctx, cfg)
		if err == nil {
			t.Errorf("connecting group %q succeeded, want an error", cfg.ID)
			must(t, c.Close())
		}
	}
}

// Calls of a closed group return ErrClosed, but do not make their stream fail.
func testGroupClosed(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{})
	r := w.ranks[0]
	b := r.newBuffer(1)
	plan, err := driver.Prepare(r.group, barrier)
	must(t, err)
	graph := r.capture(func() { must(t, r.group.Launch(r.stream, plan)) })
	must(t, r.group.Close())
	must(t, r.group.Close()) // has no effect
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
	r.group.Abort(nil) // has no effect
	must(t, r.stream.Synchronize(w.ctx))
}

func testCloseDeregisters(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	w.onEachRank(func(r *rank) {
		c := r.connect(driver.GroupConfig{ID: "short-lived", Ranks: []int{0, 1}, Check: true})
		b := r.newBuffer(1)
		window := r.register(c, r.nextKey(), b)
		closeErr := c.Close()
		deregisterErr := window.Deregister() // has no effect after Close
		r.must(errors.Join(closeErr, deregisterErr))
		b.window = r.register(r.group, r.nextKey(), b)
		checkWindow(r, r.group, b)
	})
}

// waitingCalls are calls that wait until the other rank makes the same call. They may register the
// buffer.
var waitingCalls = map[string]func(r *rank, unregistered buffer) error{
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
	"a registration": func(r *rank, unregistered buffer) error {
		_, err := r.group.Register(r.world.ctx, r.nextKey(), unregistered.segment)
		return err
	},
}

func testCloseOwnWaits(t *testing.T, h Harness) {
	for name, wait := range waitingCalls {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
			r := w.ranks[0]
			b := r.newBuffer(1)
			result := make(chan error)
			go func() { result <- wait(r, b) }()
			must(t, r.group.Close()) // the call may not have begun yet
			wantError(t, "the waiting call", <-result, driver.ErrClosed)
		})
	}
}

func testCloseOthersWaits(t *testing.T, h Harness) {
	for name, wait := range waitingCalls {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
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
	w := newWorld(t, h, 2, options{noGroup: true, ignoreCloseErrors: true})
	for round := range 60 {
		w.onEachRank(func(r *rank) { closeGroupInUse(r, round) })
	}
}

// closeGroupInUse connects a new group, and closes it while other goroutines use it.
func closeGroupInUse(r *rank, round int) {
	c := r.connect(driver.GroupConfig{
		ID: fmt.Sprint("round ", round), Ranks: []int{0, 1}, Check: true,
	})
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
			var err error
			for err == nil {
				err = call()
			}
		})
	}

	abortsFirst := (round+r.number)%3 == 0 // only rank 0, only rank 1 or neither, by round
	if abortsFirst {
		c.Abort(nil)
	}

	closeErr := c.Close()
	callers.Wait()
	streamErr := s.Close()
	r.must(closeErr)
	if streamErr == nil && c.Cause() == nil {
		r.failf("the closed group has no Cause, and its stream has no error")
	}
}

func testReopen(t *testing.T, h Harness) {
	for i := range 5 {
		t.Run(fmt.Sprint("opening ", i), func(t *testing.T) {
			w := newWorld(t, h, 3, options{checkCalls: true})
			w.onEachRank(func(r *rank) { checkWindow(r, r.group, r.newWindow(1)) })
		})
	}
}
