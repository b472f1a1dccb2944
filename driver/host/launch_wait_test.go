package host

import (
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestLaunchWakesSleepingRank makes rank 1 wait in a collective until it sleeps. Only then does
// rank 0 make the call.
func TestLaunchWakesSleepingRank(t *testing.T) {
	d := newDuo(t)
	d.connect()
	waker := d.groups[0].(*communicator)
	for _, err := range d.both(func(rank int) error {
		s, err := d.devices[rank].NewStream()
		if err != nil {
			return err
		}
		for rank == 0 && !waker.Asleep(1) {
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
		check(t, err)
	}
	if waker.Asleep(1) {
		t.Error("rank 1 still counts as asleep")
	}
}

func TestCollectiveOnIdleStreamDoesNotAllocate(t *testing.T) {
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: processTimeout,
	})
	check(t, err)
	defer func() { check(t, d.Close()) }()
	c, err := d.Connect(t.Context(), driver.GroupConfig{ID: "alone", Ranks: []int{0}})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	s, err := d.NewStream()
	check(t, err)
	defer func() { check(t, s.Close()) }()
	p, err := driver.Prepare(c, driver.Call{Operation: driver.Barrier})
	check(t, err)
	if n := testing.AllocsPerRun(1000, func() {
		if err := c.Launch(s, p); err != nil {
			t.Error(err)
		}
		if err := s.Synchronize(t.Context()); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("a collective allocates %v times, want 0", n)
	}
}
