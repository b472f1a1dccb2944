package host

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"symmem/driver"
)

// TestCollectiveIsInterrupted stops rank 1 inside a collective, so that rank 0 waits on the
// caller's thread.
func TestCollectiveIsInterrupted(t *testing.T) {
	for name, end := range map[string]func() error{
		"an error": func() error { return fmt.Errorf("the test: %w", driver.ErrInterrupted) },
		"a panic":  func() error { panic("on purpose") },
	} {
		t.Run(name, func(t *testing.T) { interruptCaller(t, end) })
	}
}

func interruptCaller(t *testing.T, end func() error) {
	t.Helper()
	var begun atomic.Bool // the two also wait for each other while they connect
	var asked atomic.Int32
	d := newDuoThatAsks(t, func() error {
		if !begun.Load() || asked.Add(1) < 3 {
			return nil
		}
		return end()
	})
	d.connect()
	var plans [2]*plan
	for rank := range plans {
		p, err := driver.Prepare(d.groups[rank], driver.Call{Operation: driver.Barrier})
		check(t, err)
		plans[rank] = p.(*plan)
		plans[rank].windowed = true // a step after the first
	}
	d.groups[1].(*communicator).begin(plans[1])
	s, err := d.devices[0].NewStream()
	check(t, err)
	begun.Store(true)
	err = d.groups[0].Launch(s, plans[0])
	if !errors.Is(err, driver.ErrInterrupted) || asked.Load() != 3 {
		t.Errorf("polled %d times: %v", asked.Load(), err)
	}
	if cause := d.groups[0].Cause(); !errors.Is(cause, driver.ErrInterrupted) {
		t.Errorf("the group has failed: %v", cause)
	}
	check(t, s.Close())
}
