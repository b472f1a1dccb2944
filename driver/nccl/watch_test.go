package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/sys/systest"
)

// TestWatcherFindsReportsOfKernels launches a single call, which differs between the ranks. The
// group must fail even though no other call follows.
func TestWatcherFindsReportsOfKernels(t *testing.T) {
	w := newTestGroup(t, 2, systest.Patience)
	for round := range 12 {
		w.regroup(0, 1)
		var plans [2]driver.Plan
		w.must(func(m *testRank) error {
			m.group.SetCheck(false) // otherwise the ranks would compare the calls
			var err error
			// The kernel of a barrier exits before the watcher's first check.
			plans[m.rank], err = prepare(m.group, driver.Call{
				Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathDirect,
				Digest: uint64(round + 1 + m.rank),
			})
			return err
		})
		w.must(func(m *testRank) error { return m.group.Launch(m.stream, plans[m.rank]) })
		w.must(func(m *testRank) error { return m.awaitMismatch(round) })
		w.must(func(m *testRank) error {
			_ = m.stream.Synchronize(t.Context()) // returns the fault
			return m.group.Close()
		})
	}
}

// awaitMismatch waits until the group has failed. The cause must be a mismatch, or the failure of
// the peer that has reported the mismatch.
func (m *testRank) awaitMismatch(round int) error {
	select {
	case <-m.group.Failed():
	case <-time.After(systest.Patience):
		return fmt.Errorf("round %d: the group of rank %d did not fail", round, m.rank)
	}

	var mismatch *driver.MismatchError
	if err := m.group.Cause(); !errors.As(err, &mismatch) && !errors.Is(err, driver.ErrFault) {
		return failuref("round %d: cause = %v, want a MismatchError or ErrFault", round, err)
	}

	return nil
}
