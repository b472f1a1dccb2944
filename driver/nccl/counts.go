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
// differ. It must be called before a timeout fails the group, because the counts end with the
// communicator. NCCL does not count direct kernels, which report their timeouts themselves.
func countsOf(unique string, group *driver.GroupConfig, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), min(countsTime, timeout/4))
	defer cancel()
	// NCCL before 2.28.7 does not answer, nor does any version with RAS disabled.
	status, err := ras.Ask(ctx, ras.Address(os.Getenv))
	if err != nil {
		return ""
	}
	return status.Differences(unique, len(group.Ranks), func(ranks []int) string {
		return driver.RanksOf(group.World(ranks), group.Ranks)
	})
}
