package host

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"symmem/driver"
)

// TestInterruptEndsCollective makes rank 1 stop in the middle of a collective, so that rank 0
// waits on the caller's thread until the test interrupts the wait.
func TestInterruptEndsCollective(t *testing.T) {
	for name, interrupt := range map[string]func() error{
		"an error": func() error { return fmt.Errorf("the test: %w", driver.ErrInterrupted) },
		"a panic":  func() error { panic("on purpose") },
	} {
		t.Run(name, func(t *testing.T) { interruptCaller(t, interrupt) })
	}
}

func interruptCaller(t *testing.T, interrupt func() error) {
	t.Helper()
	var launching atomic.Bool // set after connect, whose waits also call the hook
	var polls atomic.Int32
	pair := newRankPairWithWaitHook(t, func() error {
		if !launching.Load() || polls.Add(1) < 3 {
			return nil
		}

		return interrupt()
	})
	pair.connect()
	var plans [2]*plan
	for rank := range plans {
		p, err := driver.Prepare(pair.groups[rank], driver.Call{Operation: driver.Barrier})
		failIfErr(t, err)
		plans[rank] = p.(*plan)
		plans[rank].useWindows = true // adds a second step
	}

	pair.groups[1].(*communicator).postFirstStep(plans[1])
	s, err := pair.devices[0].NewStream()
	failIfErr(t, err)
	launching.Store(true)
	err = pair.groups[0].Launch(s, plans[0])
	if !errors.Is(err, driver.ErrInterrupted) || polls.Load() != 3 {
		t.Errorf("Launch polled %d times and returned %v; want 3 and ErrInterrupted", polls.Load(),
			err)
	}

	if cause := pair.groups[0].Cause(); !errors.Is(cause, driver.ErrInterrupted) {
		t.Errorf("Cause() = %v, want ErrInterrupted", cause)
	}

	failIfErr(t, s.Close())
}
