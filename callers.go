package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// poolUse keeps the memory of one or two pools mapped and registered, from enterPools to leave.
// Pool.Close and Suspend wait for leave.
type poolUse struct{ first, second spin.Pass }

// enterPools begins a call that uses memory of a and b, which may be nil or the same. If a pool is
// closing or suspended, enterPools returns ErrClosed or ErrSuspended. After success, the caller
// must call leave.
func enterPools(a, b *Pool) (use poolUse, err error) {
	caller := spin.Self()
	var isOpen bool
	if a != nil {
		use.first = a.calls.EnterAs(caller) // fast
		if use.first == (spin.Pass{}) {     // EnterAs does not know whether the pool is open
			use.first, isOpen = a.calls.Enter() // slow
			if !isOpen {
				return use, callRefusal(a)
			}
		}
	}

	if b == nil || b == a {
		return use, nil
	}

	use.second = b.calls.EnterAs(caller)
	if use.second == (spin.Pass{}) {
		use.second, isOpen = b.calls.Enter()
		if !isOpen {
			use.leave(a, nil) // b was not entered
			return use, callRefusal(b)
		}
	}

	return use, nil
}

// leave ends the call. Its arguments must be those of enterPools.
func (u poolUse) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(u.first)
	}

	if b != nil && b != a {
		b.calls.Leave(u.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// errPoolChanging is the error of a refused call if the reason has just ended: a Resume has ended
// the suspension, or a Close has failed.
var errPoolChanging = &refusalError{
	text: "the pool was suspended or being closed when the call began: try again", kind: ErrBusy,
}

// callRefusal returns the error of a call that the pool has refused.
func callRefusal(p *Pool) error {
	p.mu.Lock()
	return unlockAndRefuse(p)
}

// unlockAndRefuse is callRefusal for callers that hold Pool.mu. It unlocks Pool.mu.
func unlockAndRefuse(p *Pool) error {
	defer p.mu.Unlock()
	isBeingClosed := p.suspender.closes > 0
	switch {
	case p.segments.closed || isBeingClosed:
		return errPoolClosed
	case p.Suspended():
		return errPoolSuspended
	default:
		return errPoolChanging
	}
}

// refuseCalls makes new calls of a pool fail and waits for the calls in progress. If the context
// ends first, refuseCalls admits calls again and returns an error.
func refuseCalls(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	if err := poll(ctx, calls.Empty); err != nil {
		calls.Open()
		return fmt.Errorf("waiting for calls that use the pool's buffers: %w", err)
	}

	return nil
}

// poll waits until isDone returns true or ctx ends. It calls isDone in intervals that grow from a
// microsecond to a millisecond.
func poll(ctx context.Context, isDone func() bool) error {
	pause := time.Microsecond
	for !isDone() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}

		pause = min(2*pause, time.Millisecond)
	}

	return nil
}
