package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
)

// TestWhatAKernelReportsIsToldThoughNobodyAsks launches calls that differ, one on each rank, and
// nothing after them: whoever waits for the group to fail must hear of it.
func TestWhatAKernelReportsIsToldThoughNobodyAsks(t *testing.T) {
	w := newTestGroup(t, 2, 20*time.Second)
	for round := range 12 {
		w.regroup(0, 1)
		var plans [2]driver.Plan
		w.must(func(m *testRank) error {
			m.group.SetCheck(false) // else ranks compare what they launch besides
			var err error
			// The kernel of a barrier is over before the watcher looks.
			plans[m.rank], err = prepare(m.group, driver.Call{
				Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathDirect,
				Digest: uint64(round + 1 + m.rank),
			})
			return err
		})
		w.must(func(m *testRank) error { return m.group.Launch(m.stream, plans[m.rank]) })
		w.must(func(m *testRank) error { return m.hears(round) })
		w.must(func(m *testRank) error {
			_ = m.stream.Synchronize(t.Context()) // has the fault told
			return m.group.Close()
		})
	}
}

// hears waits until the group has failed over a difference: the first rank to look tells of it, the
// other may hear that a peer has failed.
func (m *testRank) hears(round int) error {
	select {
	case <-m.group.Failed():
	case <-time.After(5 * time.Second):
		return fmt.Errorf("round %d: rank %d has not heard of the difference", round, m.rank)
	}
	var differs *driver.MismatchError
	if err := m.group.Cause(); !errors.As(err, &differs) && !errors.Is(err, driver.ErrFault) {
		return fmt.Errorf("round %d: got %w", round, err)
	}
	return nil
}
