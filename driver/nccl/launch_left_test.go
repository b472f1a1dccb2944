package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestLaunchIsRefusedAfterARankHasLeft lets the last rank make one call fewer and leave. The next
// launch of the others must return an error, on every path, without waiting.
func TestLaunchIsRefusedAfterARankHasLeft(t *testing.T) {
	for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow, driver.PathDirect} {
		t.Run(path.String(), func(t *testing.T) {
			w := newGroup(t, 2, time.Minute)
			left := make(chan struct{})
			w.withPower(sizes["lines"], func(m *testRank, p *power) error {
				err := errors.Join(p.raise(m.group, m.stream, path), m.stream.Synchronize(t.Context()))
				if err != nil {
					return err
				}
				if m.rank == 1 {
					defer close(left)
					return m.leave()
				}
				<-left
				m.group.SetCheck(false) // or the comparison would notice it
				err = p.raise(m.group, m.stream, path)
				var deadlock *driver.DeadlockError
				if !errors.As(err, &deadlock) || deadlock.Elsewhere[1] == "" {
					t.Errorf("got %v, want a DeadlockError about rank 1", err)
				}
				return nil
			})
		})
	}
}
