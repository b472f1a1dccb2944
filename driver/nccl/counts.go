package nccl

import (
	"context"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

// countsTime is how long NCCL may take to say what it has counted. It waits a second for processes
// that do not answer.
const countsTime = 1500 * time.Millisecond

// countsOf says how many collectives ranks have launched by NCCL's own counts, where these differ.
// It is asked before a timeout fails the group: NCCL forgets them with the communicator. Kernels of
// our own, which NCCL does not see, report their timeouts themselves.
func countsOf(unique string, group *driver.GroupConfig, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), min(countsTime, timeout/4))
	defer cancel()
	// Versions before 2.28.7 do not answer, and nobody does where it is turned off.
	status, err := ras.Ask(ctx, ras.Address(os.Getenv))
	if err != nil {
		return ""
	}
	return status.Differences(unique, len(group.Ranks), func(ranks []int) string {
		return driver.RanksOf(group.World(ranks), group.Ranks)
	})
}
