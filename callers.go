package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// A call that queues work on a pool's memory first enters the gate Pool.calls, and leaves it once
// the work is queued. Pool.Close and Pool.Suspend close the gate and wait until it is empty before
// they unmap memory.

// poolUse is the result of entering one or two gates, for leave.
type poolUse struct{ first, second spin.Pass }

// enterPools begins a call that uses memory of a and b. Either may be nil, and both may be the same
// pool. After success, the caller must call leave with the same pools.
func enterPools(a, b *Pool) (use poolUse, err error) {
	goroutine := spin.Self()
	var notEntered spin.Pass
	if a != nil {
		use.first = a.calls.EnterAs(goroutine) // fast, but only for the goroutine that owns the gate
		if use.first == notEntered {
			use.first, err = enterSlowly(a)
			if err != nil {
				return use, err
			}
		}
	}

	if b == nil || b == a {
		return use, nil
	}

	use.second = b.calls.EnterAs(goroutine)
	if use.second == notEntered {
		use.second, err = enterSlowly(b)
		if err != nil {
			use.leave(a, nil) // b was not entered
			return use, err
		}
	}

	return use, nil
}

func enterSlowly(p *Pool) (spin.Pass, error) {
	pass, isOpen := p.calls.Enter()
	if !isOpen {
		return pass, callRefusal(p)
	}

	return pass, nil
}

func (u poolUse) leave(a, b *Pool) {
	if a != nil {
		a.calls.Leave(u.first)
	}

	if b != nil && b != a {
		b.calls.Leave(u.second)
	}
}

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// errPoolChanging is for a call that found the gate closed, if the pool is open again.
var errPoolChanging = &refusalError{
	text: "the pool was suspended or being closed when the call began: try again", kind: ErrBusy,
}

// callRefusal returns the error for a call that found the gate closed.
func callRefusal(p *Pool) error {
	p.mu.Lock()
	return unlockAndRefuse(p)
}

// unlockAndRefuse is callRefusal for callers that hold Pool.mu.
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

// closeGate closes a gate and waits until it is empty. If ctx ends first, it reopens the gate and
// returns an error.
func closeGate(ctx context.Context, gate *spin.Gate) error {
	gate.Close()
	if err := poll(ctx, gate.Empty); err != nil {
		gate.Open()
		return fmt.Errorf("waiting for calls that use the pool's buffers: %w", err)
	}

	return nil
}

// poll calls isDone, with growing pauses, until it returns true or ctx ends.
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
