package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// visit is a call under way that works with the memory of two pools, of which each may be nil. A
// call looks at buffers first and queues work on them later: in between, only the visit keeps their
// memory and their windows.
type visit struct{ first, second spin.Pass }

// enter begins a call with memory of two pools, which may be one; the call ends with leave. Where a
// pool closes it returns ErrClosed, and the call does not begin.
func enter(a, b *Pool) (v visit, err error) {
	me := spin.Self()
	var open bool
	if a != nil {
		if v.first = a.calls.EnterAs(me); v.first == (spin.Pass{}) {
			if v.first, open = a.calls.Enter(); !open {
				return v, errPoolClosed
			}
		}
	}
	if b == nil || b == a {
		return v, nil
	}
	if v.second = b.calls.EnterAs(me); v.second == (spin.Pass{}) {
		if v.second, open = b.calls.Enter(); !open {
			v.leave(a, nil)
			return v, errPoolClosed
		}
	}
	return v, nil
}

// leave ends the call that enter has begun for two pools.
func (v visit) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(v.first)
	}
	if b != nil && b != a {
		b.calls.Leave(v.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// refuse lets no call begin, and waits for those that have. After an error, which is that of the
// context, calls may begin again.
func refuse(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	for pause := time.Microsecond; !calls.Empty(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-ctx.Done():
			calls.Open()
			return fmt.Errorf("waiting for calls with its buffers: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
