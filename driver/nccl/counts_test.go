package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestTimeoutHasCountsOfNCCL checks that a TimeoutError contains NCCL's operation counts. One rank
// skips an NCCL collective.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if soft(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}
	w := newGroup(t, 2, 6*time.Second)
	w.withPower(1024, func(m *testRank, p *power) error {
		m.group.SetCheck(false) // otherwise rank 0's second call would not reach NCCL
		for range 2 - m.rank {
			if err := p.raise(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}
		err := m.stream.Synchronize(t.Context())
		if m.rank == 1 {
			return err
		}
		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("got %v, want a TimeoutError", err)
		}
		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") ||
			!strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("got counts %q in %v, want counts of AllReduce", timeoutErr.Counts, timeoutErr)
		}
		return nil
	})
}
