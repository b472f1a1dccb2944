package rendezvous

import (
	"context"
	"time"
)

// reportLateRanks calls report repeatedly on another goroutine, until ctx is done or stop is
// called. The arguments of report are the ranks that findLate returns, and the time since the first
// call, which has no ranks. report returns the time until its next call, or a negative time if
// there must be none. report may be nil.
func reportLateRanks(
	ctx context.Context, report func([]int, time.Duration) time.Duration,
	findLate func(context.Context) []int,
) (stop func()) {
	if report == nil {
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pause := report(nil, 0)
		for pause >= 0 && sleep(ctx, pause) {
			ranks := findLate(ctx)
			waited := time.Since(begin)
			if ctx.Err() != nil {
				return
			}

			pause = report(ranks, waited)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
