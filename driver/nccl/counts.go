package nccl

import (
	"context"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

// countsTimeout exceeds the second for which NCCL waits for processes that do not answer.
const countsTimeout = 1500 * time.Millisecond

// describeCounts describes how many collectives NCCL has launched on each rank, if the numbers
// differ. It must be called before the group fails, because an aborted communicator has no counts.
func describeCounts(rasID string, group *driver.GroupConfig, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), min(countsTimeout, timeout/4))
	defer cancel()
	// This fails if RAS is disabled.
	status, err := ras.QueryStatus(ctx, ras.Address(os.Getenv))
	if err != nil {
		return ""
	}

	return status.DescribeDifferences(rasID, len(group.Ranks), func(ranks []int) string {
		return driver.RanksOf(group.World(ranks), group.Ranks)
	})
}
