package symmem

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// creation tracks the calls in progress that create groups, pools and streams. Runtime.Close waits
// for these calls before it closes the objects. Calls that begin later fail with ErrClosed.
type creation struct {
	mu     *ranked.Mutex[runtimeMu]
	calls  sync.WaitGroup  // calls.Add requires mu and an open runtime
	life   context.Context // canceled with ErrClosed when Runtime.Close begins
	cancel context.CancelCauseFunc
}

// closedError returns ErrClosed if Runtime.Close has begun, and otherwise nil.
func (c *creation) closedError() error { return context.Cause(c.life) }

// beginCall begins a call that creates an object. After success, the caller must call endCall.
func (c *creation) beginCall() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.closedError(); err != nil {
		return err
	}

	c.calls.Add(1)
	return nil
}

func (c *creation) endCall() { c.calls.Done() }

// beginJoin begins a call that waits for other ranks. Runtime.Close cancels joinCtx to end the
// wait. After success, the caller must pass its error, which may be nil, to done, and return the
// result.
func (c *creation) beginJoin(
	ctx context.Context,
) (joinCtx context.Context, done func(error) error, err error) {
	if err := c.beginCall(); err != nil {
		return nil, nil, err
	}

	joinCtx, cancel := context.WithCancelCause(ctx)
	stopWatching := context.AfterFunc(c.life, func() { cancel(c.closedError()) })
	done = func(err error) error {
		defer c.endCall()
		stopWatching()
		cancel(nil) // releases joinCtx
		if err != nil {
			return cmp.Or(c.closedError(), err) // Close may be the reason for err
		}

		return nil
	}
	return joinCtx, done, nil
}

// close makes new calls fail. It reports whether this is the first close.
func (c *creation) close() (isFirst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFirst = c.life.Err() == nil
	c.cancel(fmt.Errorf("runtime: %w", ErrClosed))
	return isFirst
}

// await waits for the calls in progress, or until the deadline. Without a deadline, a signal
// handler that interrupts a call and then closes the Runtime would wait for this call forever.
func (c *creation) await(deadline time.Time) {
	done := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Until(deadline)):
	}
}
