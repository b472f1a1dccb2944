package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

func (pair *rankPair) barrierPlan(rank int) (*stream, driver.Plan, error) {
	newStream, err := pair.devices[rank].NewStream()
	if err != nil {
		return nil, nil, err
	}

	p, err := driver.Prepare(pair.groups[rank], driver.Call{Operation: driver.Barrier})
	return newStream.(*stream), p, err
}

// waitForPeerSleep is called on a rank and waits until the peer sleeps in a collective.
func (pair *rankPair) waitForPeerSleep(rank int) {
	peer := 1 - rank
	group := pair.groups[rank].(*communicator)
	for !group.IsAsleep(peer) {
		runtime.Gosched()
	}
}

func TestLaunchWakesSleepingRank(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const waker, sleeper = 0, 1
	pair.mustRunOnBoth(func(rank int) error {
		s, barrier, err := pair.barrierPlan(rank)
		if err != nil {
			return err
		}

		if rank == waker {
			pair.waitForPeerSleep(rank)
		}

		if err := pair.groups[rank].Launch(s, barrier); err != nil {
			return err
		}

		if err := s.Synchronize(t.Context()); err != nil {
			return err
		}

		return s.Close()
	})
	if pair.groups[waker].(*communicator).IsAsleep(sleeper) {
		t.Error("IsAsleep = true after the collective, want false")
	}
}

func TestCollectiveOnIdleStreamDoesNotAllocate(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size:  1, // AllocsPerRun would count allocations of peers, too
		Store: &drivertest.Store{}, Timeout: processTimeout,
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

// If a peer is late, LaunchInline leaves the collective to the caller's Synchronize.
func TestInlineLaunchLeavesWaitToCaller(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const lateRank = 1
	pair.mustRunOnBoth(func(rank int) error {
		s, barrier, err := pair.barrierPlan(rank)
		if err != nil {
			return err
		}

		if rank == lateRank {
			pair.waitForPeerSleep(rank)
		}

		if err := pair.groups[rank].(driver.InlineLauncher).LaunchInline(s, barrier); err != nil {
			return err
		}

		if rank == lateRank {
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
	})
}
