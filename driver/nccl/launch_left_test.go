package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestLaunchIsRefusedAfterARankHasLeft launches a call on rank 0 after rank 1 has closed the
// group. On every path, the launch must return an error without waiting.
func TestLaunchIsRefusedAfterARankHasLeft(t *testing.T) {
	for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect} {
		t.Run(path.String(), func(t *testing.T) {
			w := newGroup(t, 2, time.Minute)
			closed := make(chan struct{})
			w.withSum(countFor["line"], func(m *testRank, p *repeatedSum) error {
				err := errors.Join(p.launch(m.group, m.stream, path), m.stream.Synchronize(t.Context()))
				if err != nil {
					return err
				}

				if m.rank == 1 {
					defer close(closed)
					return m.closeGroup()
				}

				<-closed
				m.group.SetCheck(false) // otherwise the comparison would report the closed group
				err = p.launch(m.group, m.stream, path)
				var deadlock *driver.DeadlockError
				if !errors.As(err, &deadlock) || deadlock.Activity[1] == "" {
					t.Errorf("launch = %v, want a DeadlockError about rank 1", err)
				}

				return nil
			})
		})
	}
}
