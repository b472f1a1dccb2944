package nccl

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestTimeoutHasCountsOfNCCL lets one rank skip a collective of NCCL.
func TestTimeoutHasCountsOfNCCL(t *testing.T) {
	if soft(t) {
		t.Skip("not supported here: the NCCL of the software GPU has no RAS")
	}
	w := newGroup(t, 2, 6*time.Second)
	w.withPower(1024, func(m *testRank, p *power) error {
		m.group.SetCheck(false) // or the call of one rank would never reach NCCL
		for range 2 - m.rank {
			if err := p.raise(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}
		}
		err := m.stream.Synchronize(t.Context())
		if m.rank == 1 {
			return err
		}
		var late *driver.TimeoutError
		if !errors.As(err, &late) {
			return fmt.Errorf("got %w, want a TimeoutError", err)
		}
		t.Log(late)
		if !strings.Contains(late.Counts, "AllReduce: ") || !strings.Contains(late.Error(), late.Counts) {
			return fmt.Errorf("got counts %q, want those of AllReduce", late.Counts)
		}
		return nil
	})
}
