package nccl

import (
	"context"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

// countsTime bounds the time that NCCL may take to report its counts. It waits a second for
// processes that do not answer.
const countsTime = 1500 * time.Millisecond

// countsOf describes NCCL's own counts of the collectives that each rank has launched, if they
// differ.
// It is asked before a timeout fails the group: NCCL forgets them with the communicator. Kernels of
// our own, which NCCL does not see, report their timeouts themselves.
func countsOf(unique string, group *driver.GroupConfig, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), min(countsTime, timeout/4))
	defer cancel()
	// Versions before 2.28.7 do not answer, nor does one whose RAS is turned off.
	status, err := ras.Ask(ctx, ras.Address(os.Getenv))
	if err != nil {
		return ""
	}
	return status.Differences(unique, len(group.Ranks), func(ranks []int) string {
		return driver.RanksOf(group.World(ranks), group.Ranks)
	})
}
