package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestLaunchWakesSleepingRank waits until rank 1 sleeps in a collective, and then makes rank 0 call
// the same collective. That must wake rank 1, or else its wait times out.
func TestLaunchWakesSleepingRank(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	group0 := d.groups[0].(*communicator)
	for _, err := range d.runOnBoth(func(rank int) error {
		s, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}

		if rank == 0 {
			for !group0.IsAsleep(1) {
				runtime.Gosched()
			}
		}

		p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}

		if err := d.groups[rank].Launch(s, p); err != nil {
			return err
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		return s.Close()
	}) {
		failIfErr(t, err)
	}

	if group0.IsAsleep(1) {
		t.Error("rank 1 is still marked as asleep")
	}
}

// TestCollectiveOnIdleStreamDoesNotAllocate counts the allocations of a Barrier on an idle stream,
// for both ways to launch it. The group has one rank, so no other rank adds allocations.
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
	group1 := d.groups[1].(*communicator)
	for _, err := range d.runOnBoth(func(rank int) error {
		newStream, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}

		s := newStream.(*stream)
		if rank == 1 {
			for !group1.IsAsleep(0) {
				runtime.Gosched()
			}
		}

		p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}

		if err := d.groups[rank].(driver.InlineLauncher).LaunchInline(s, p); err != nil {
			return err
		}

		hasRun := false // set by rank 0's work after the collective
		if rank == 0 {
			if !s.deferred { // whether Synchronize must run the work
				t.Error("LaunchInline left the work to another goroutine")
			}

			if err := s.Host(func() { hasRun = true }); err != nil {
				return err
			}
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		if rank == 0 && !hasRun {
			t.Error("Synchronize returned before the work queued after the collective had run")
		}

		return s.Close()
	}) {
		failIfErr(t, err)
	}
}
