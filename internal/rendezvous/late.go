package rendezvous

import (
	"context"
	"time"
)

// reportLateRanks calls report repeatedly until stop is called. report returns the time until its
// next call, or a negative time for none.
func reportLateRanks(
	ctx context.Context, report func([]int, time.Duration) time.Duration,
	findLate func(context.Context) []int,
) (stop func()) {
	if report == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done, begin := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for pause := report(nil, 0); pause >= 0 && sleep(ctx, pause); {
			ranks, waited := findLate(ctx), time.Since(begin)
			if ctx.Err() != nil {
				return
			}
			pause = report(ranks, waited)
		}
	}()
	return func() { cancel(); <-done }
}
