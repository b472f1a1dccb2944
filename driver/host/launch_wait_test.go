package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// A stream runs work in order. There are two ways to launch a collective on a stream that is idle:
//
//   - Launch lets the collective run without further calls.
//   - LaunchInline may defer the collective: Synchronize then runs it on the caller's goroutine.
//
// While a collective waits for another rank, its rank may sleep. The other rank must wake it.

// barrierPlan returns a stream of a rank, and a plan for a Barrier of the rank's group.
func (d *rankPair) barrierPlan(rank int) (*stream, driver.Plan, error) {
	newStream, err := d.devices[rank].NewStream()
	if err != nil {
		return nil, nil, err
	}

	p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
	return newStream.(*stream), p, err
}

// awaitSleepOf waits until a rank sleeps in a collective. It is called on the other rank.
func (d *rankPair) awaitSleepOf(sleeper int) {
	otherRank := 1 - sleeper
	group := d.groups[otherRank].(*communicator)
	for !group.IsAsleep(sleeper) {
		runtime.Gosched()
	}
}

// TestLaunchWakesSleepingRank waits until rank 1 sleeps in a collective, and then launches the same
// collective on rank 0. This must wake rank 1. Otherwise, its wait would time out.
func TestLaunchWakesSleepingRank(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	for _, err := range d.runOnBoth(func(rank int) error {
		s, barrier, err := d.barrierPlan(rank)
		if err != nil {
			return err
		}

		if rank == 0 {
			d.awaitSleepOf(1)
		}

		if err := d.groups[rank].Launch(s, barrier); err != nil {
			return err
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		return s.Close()
	}) {
		failIfErr(t, err)
	}

	if d.groups[0].(*communicator).IsAsleep(1) {
		t.Error("IsAsleep(1) = true after the collective, want false")
	}
}

// TestCollectiveOnIdleStreamDoesNotAllocate counts the allocations of a Barrier on an idle stream,
// for both ways to launch it. There must be none. The group has one rank, because allocations of
// other ranks would be counted, too.
func TestCollectiveOnIdleStreamDoesNotAllocate(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: processTimeout,
	})
	failIfErr(t, err)
	defer func() { failIfErr(t, d.Close()) }()
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "alone", Ranks: []int{0}})
	failIfErr(t, err)
	defer func() { failIfErr(t, c.Close()) }()
	s, err := d.NewStream()
	failIfErr(t, err)
	defer func() { failIfErr(t, s.Close()) }()
	p, err := driver.Prepare(c, driver.Call{Operation: driver.Barrier})
	failIfErr(t, err)
	const runs = 1000
	for name, launch := range map[string]func(driver.Stream, driver.Plan) error{
		"Launch":       c.Launch,
		"LaunchInline": c.(driver.InlineLauncher).LaunchInline,
	} {
		allocations := testing.AllocsPerRun(runs, func() {
			if err := launch(s, p); err != nil {
				t.Error(err)
			}

			if err := s.Synchronize(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if allocations != 0 {
			t.Errorf("a collective made %v allocations with %s, want 0", allocations, name)
		}
	}
}

// TestInlineLaunchLeavesWaitToCaller calls LaunchInline on rank 0, and on rank 1 once rank 0
// sleeps in Synchronize. Synchronize must run the collective on the caller's goroutine, and then
// the work that rank 0 has queued after it.
func TestInlineLaunchLeavesWaitToCaller(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	for _, err := range d.runOnBoth(func(rank int) error {
		s, barrier, err := d.barrierPlan(rank)
		if err != nil {
			return err
		}

		if rank == 1 {
			d.awaitSleepOf(0)
		}

		if err := d.groups[rank].(driver.InlineLauncher).LaunchInline(s, barrier); err != nil {
			return err
		}

		if rank == 1 {
			if err := s.Synchronize(t.Context()); err != nil {
				return err
			}

			return s.Close()
		}

		if !s.deferred { // whether Synchronize must run the collective
			t.Error("LaunchInline left the work to another goroutine, want it deferred")
		}

		hasRun := false // set by work after the collective
		if err := s.Host(func() { hasRun = true }); err != nil {
			return err
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		if !hasRun {
			t.Error("Synchronize returned before the work queued after the collective had run")
		}

		return s.Close()
	}) {
		failIfErr(t, err)
	}
}
