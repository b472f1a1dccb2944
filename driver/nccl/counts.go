package nccl

import (
	"context"
	"errors"
	"os"
	"time"

	"symmem/driver"
	"symmem/internal/ras"
)

// countsTime is how long NCCL may take to say what it has counted. It waits a second for processes
// that do not answer.
const countsTime = 1500 * time.Millisecond

// addCounts adds to a TimeoutError what NCCL has counted on each rank. Kernels of our own, which
// NCCL does not see, report their timeouts themselves: those are not held up.
func (c watcher) addCounts(err error) {
	var late *driver.TimeoutError
	if !errors.As(err, &late) || c.unique == "" {
		return
	}
	if _, reported := c.direct.exchange.Reported(); reported {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(countsTime, c.device.cfg.Timeout/4))
	defer cancel()
	// Versions before 2.28.7 do not answer, and nobody does where it is turned off.
	if status, err := ras.Ask(ctx, ras.Address(os.Getenv)); err == nil {
		late.Counts = status.Differences(c.unique, c.cfg.Ranks)
	}
}
