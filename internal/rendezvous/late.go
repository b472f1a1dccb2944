package rendezvous

import (
	"context"
	"time"
)

// warnLate warns of the ranks that have not come, until stop is called.
func (m *Member) warnLate(
	ctx context.Context, absent func(context.Context) []int,
) (stop func()) {
	if m.world.Late == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done, begin := make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for next := m.world.Late(nil, 0); next >= 0 && sleep(ctx, next); {
			missing, waited := absent(ctx), time.Since(begin)
			if ctx.Err() != nil {
				return
			}
			next = m.world.Late(missing, waited)
		}
	}()
	return func() { cancel(); <-done }
}
