package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestLaunchWakesSleepingRank waits until rank 1 sleeps in a collective, and then makes rank 0 call
// the same collective.
func TestLaunchWakesSleepingRank(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	group0 := d.groups[0].(*communicator)
	for _, err := range d.runOnBoth(func(rank int) error {
		s, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}
		for rank == 0 && !group0.IsAsleep(1) {
			runtime.Gosched()
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
	inline := c.(driver.InlineLauncher).LaunchInline
	for _, launch := range []func(driver.Stream, driver.Plan) error{c.Launch, inline} {
		if n := testing.AllocsPerRun(1000, func() {
			if err := launch(s, p); err != nil {
				t.Error(err)
			}
			if err := s.Synchronize(t.Context()); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("a collective made %v allocations, want 0", n)
		}
	}
}

// TestInlineLaunchLeavesWaitToCaller calls LaunchInline on rank 0, and on rank 1 once rank 0
// sleeps in Synchronize. Rank 0 must also run the work that it has queued after the collective.
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
		hasRun := false
		for rank == 1 && !group1.IsAsleep(0) {
			runtime.Gosched()
		}
		p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		if err != nil {
			return err
		}
		if err := d.groups[rank].(driver.InlineLauncher).LaunchInline(s, p); err != nil {
			return err
		}
		if rank == 0 {
			if !s.deferred {
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
