package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// visit represents a call in progress that uses memory of up to two pools. A call first looks up
// buffers and later queues work on them. In between, only the visit keeps the memory and windows of
// the buffers alive.
type visit struct{ first, second spin.Pass }

// enter begins a call that uses memory of up to two pools. Each pool may be nil, and both may be
// equal. The call ends with leave. If a pool is closing, enter returns ErrClosed and no call has
// begun.
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

// leave ends a call. Its arguments are those of enter.
func (v visit) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(v.first)
	}
	if b != nil && b != a {
		b.calls.Leave(v.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// refuse prevents further calls and waits for those in progress. If the context ends first, refuse
// returns its error, and calls are permitted again.
func refuse(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	for pause := time.Microsecond; !calls.Empty(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-ctx.Done():
			calls.Open()
			return fmt.Errorf("waiting for calls that use the pool's buffers: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
