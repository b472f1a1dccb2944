package symmem

import (
	"context"
	"fmt"
	"time"

	"symmem/internal/spin"
)

// Suppose that a goroutine copies from a buffer of pool A to a buffer of pool B, while another one
// closes pool B. Close must not unmap the memory before the copy is queued. Therefore, the copy
// enters both pools first, and leaves them afterwards. Close refuses new calls, and waits until the
// calls in progress have left the pool. Suspend does the same.
//
// The field Pool.calls is a gate that counts the calls in the pool. Entering it is fast for the
// goroutine that usually enters it.

// poolUse is the result of enterPools. Until leave, the pools are neither closed nor suspended.
type poolUse struct{ first, second spin.Pass }

// enterPools begins a call that uses memory of a and b, which may be nil or the same. If a pool is
// closing or suspended, enterPools returns ErrClosed or ErrSuspended. After success, the caller
// must call leave.
func enterPools(a, b *Pool) (use poolUse, err error) {
	caller := spin.Self()
	var isOpen bool
	if a != nil {
		use.first = a.calls.EnterAs(caller) // fast
		if use.first == (spin.Pass{}) {     // not the usual goroutine, or closed
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

// errPoolChanging is the error of a refused call if the reason has ended since: a Resume has ended
// the suspension, or a Close has failed.
var errPoolChanging = &refusalError{
	text: "the pool was suspended or being closed when the call began: try again", kind: ErrBusy,
}

// callRefusal returns the error for a call that the pool has refused.
func callRefusal(p *Pool) error {
	p.mu.Lock()
	return unlockAndRefuse(p)
}

// unlockAndRefuse unlocks Pool.mu, and returns the error for a call that the pool has refused. The
// caller must hold Pool.mu.
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

// refuseCalls makes new calls of a pool fail, and waits until the calls in progress have left the
// pool. If the context ends first, refuseCalls admits calls again and returns an error.
func refuseCalls(ctx context.Context, calls *spin.Gate) error {
	calls.Close()
	if err := poll(ctx, calls.Empty); err != nil {
		calls.Open()
		return fmt.Errorf("waiting for calls that use the pool's buffers: %w", err)
	}

	return nil
}

// poll waits until isDone returns true or ctx ends. The pauses between its calls of isDone grow
// from a microsecond to a millisecond.
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
