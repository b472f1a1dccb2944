package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// visit represents a call that uses memory of one or two pools. The memory stays mapped and
// registered from enter to leave.
type visit struct{ first, second spin.Pass }

// enter begins a call that uses memory of the pools a and b, which may be nil or the same. If a
// pool is closing or suspended, enter returns ErrClosed or ErrSuspended; otherwise, the caller must
// call leave.
func enter(a, b *Pool) (v visit, err error) {
	me := spin.Self()
	var open bool
	if a != nil {
		if v.first = a.calls.EnterAs(me); v.first == (spin.Pass{}) {
			if v.first, open = a.calls.Enter(); !open {
				return v, refusalOf(a)
			}
		}
	}
	if b == nil || b == a {
		return v, nil
	}
	if v.second = b.calls.EnterAs(me); v.second == (spin.Pass{}) {
		if v.second, open = b.calls.Enter(); !open {
			v.leave(a, nil)
			return v, refusalOf(b)
		}
	}
	return v, nil
}

// leave must get the arguments of enter.
func (v visit) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(v.first)
	}
	if b != nil && b != a {
		b.calls.Leave(v.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

func refusalOf(p *Pool) error {
	p.mu.Lock()
	return unlockAndRefuse(p)
}

// unlockAndRefuse returns the reason why a pool has refused a call, and unlocks Pool.mu.
func unlockAndRefuse(p *Pool) error {
	defer p.mu.Unlock()
	if p.segments.closed || p.suspender.closes > 0 {
		return errPoolClosed
	}
	return errPoolSuspended // the pool may have been resumed since it refused the call
}

// refuse makes further calls fail and waits for those in progress. If the context ends first, it
// permits calls again.
func refuse(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	if err := poll(ctx, calls.Empty); err != nil {
		calls.Open()
		return fmt.Errorf("waiting for calls that use the pool's buffers: %w", err)
	}
	return nil
}

func poll(ctx context.Context, done func() bool) error {
	for pause := time.Microsecond; !done(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}
