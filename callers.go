package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// poolUse keeps the memory of one or two pools mapped and registered until leave.
type poolUse struct{ first, second spin.Pass }

// enterPools begins a call that uses memory of a and b, which may be nil or the same. If a pool is
// closing or suspended, it returns ErrClosed or ErrSuspended; otherwise, the caller must call
// leave.
func enterPools(a, b *Pool) (use poolUse, err error) {
	caller := spin.Self()
	var isOpen bool
	if a != nil {
		if use.first = a.calls.EnterAs(caller); use.first == (spin.Pass{}) {
			if use.first, isOpen = a.calls.Enter(); !isOpen {
				return use, callRefusal(a)
			}
		}
	}
	if b == nil || b == a {
		return use, nil
	}
	if use.second = b.calls.EnterAs(caller); use.second == (spin.Pass{}) {
		if use.second, isOpen = b.calls.Enter(); !isOpen {
			use.leave(a, nil)
			return use, callRefusal(b)
		}
	}
	return use, nil
}

// leave requires the arguments of enterPools.
func (u poolUse) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(u.first)
	}
	if b != nil && b != a {
		b.calls.Leave(u.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// errPoolChanging is returned if a Resume or a failed Close ends just after a call was refused.
var errPoolChanging = &refusalError{
	"the pool was suspended or being closed when the call began: try again", ErrBusy,
}

func callRefusal(p *Pool) error {
	p.mu.Lock()
	return unlockAndRefuse(p)
}

// unlockAndRefuse unlocks Pool.mu and returns the reason for a refused call.
func unlockAndRefuse(p *Pool) error {
	defer p.mu.Unlock()
	switch {
	case p.segments.closed || p.suspender.closes > 0:
		return errPoolClosed
	case p.Suspended():
		return errPoolSuspended
	}
	return errPoolChanging
}

// refuseCalls makes further calls fail and waits for those in progress. It readmits calls if the
// context ends first.
func refuseCalls(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	if err := poll(ctx, calls.Empty); err != nil {
		calls.Open()
		return fmt.Errorf("waiting for calls that use the pool's buffers: %w", err)
	}
	return nil
}

func poll(ctx context.Context, isDone func() bool) error {
	for pause := time.Microsecond; !isDone(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}
