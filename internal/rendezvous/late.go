package rendezvous

import (
	"context"
	"time"
)

// warnLate repeatedly calls late with the result of missing and the time waited so far, until stop
// is called. late returns the time until the next call.
func warnLate(
	ctx context.Context, late func([]int, time.Duration) time.Duration,
	missing func(context.Context) []int,
) (stop func()) {
	if late == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done, begin := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for next := late(nil, 0); next >= 0 && sleep(ctx, next); {
			ranks, waited := missing(ctx), time.Since(begin)
			if ctx.Err() != nil {
				return
			}
			next = late(ranks, waited)
		}
	}()
	return func() { cancel(); <-done }
}
