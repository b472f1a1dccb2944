package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

func (d *rankPair) barrierPlan(rank int) (*stream, driver.Plan, error) {
	newStream, err := d.devices[rank].NewStream()
	if err != nil {
		return nil, nil, err
	}

	p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
	return newStream.(*stream), p, err
}

// awaitSleepOf waits until the peer sleeps in a collective.
func (d *rankPair) awaitSleepOf(sleeper int) {
	otherRank := 1 - sleeper
	group := d.groups[otherRank].(*communicator)
	for !group.IsAsleep(sleeper) {
		runtime.Gosched()
	}
}

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

// The group has only one rank, so that no allocations of peers are counted.
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

// If peers are late, LaunchInline leaves the collective to the caller's Synchronize.
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

		if !s.deferred {
			t.Error("LaunchInline left the work to another goroutine, want it deferred")
		}

		hasRunLaterWork := false
		if err := s.Host(func() { hasRunLaterWork = true }); err != nil {
			return err
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		if !hasRunLaterWork {
			t.Error("Synchronize returned before the work queued after the collective had run")
		}

		return s.Close()
	}) {
		failIfErr(t, err)
	}
}
