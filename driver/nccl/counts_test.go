package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestTimeoutHasCountsOfNCCL makes one rank skip an NCCL collective, and checks that the other
// rank's TimeoutError contains NCCL's operation counts.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if usesSoftGPU(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}
	w := newGroup(t, 2, 6*time.Second)
	w.withSum(1024, func(m *testRank, p *repeatedSum) error {
		m.group.SetCheck(false) // because otherwise rank 0's second call would not reach NCCL
		for range 2 - m.rank {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}
		err := m.stream.Synchronize(t.Context())
		if m.rank == 1 {
			return err
		}
		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) {
			return failuref("Synchronize = %v, want a TimeoutError", err)
		}
		t.Log(timeoutErr)
		if !strings.Contains(timeoutErr.Counts, "AllReduce: ") ||
			!strings.Contains(timeoutErr.Error(), timeoutErr.Counts) {
			return failuref("got counts %q in %v, want counts of AllReduce", timeoutErr.Counts, timeoutErr)
		}
		return nil
	})
}
