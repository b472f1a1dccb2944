package symmem

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// Suppose that one goroutine creates a pool while another one closes the Runtime. Runtime.Close
// closes all pools, so it must first wait for the call that creates this one. Calls that begin
// after Close has begun return ErrClosed.

// creation counts the calls in progress that create groups, pools and streams.
type creation struct {
	mu     *ranked.Mutex[runtimeMu]
	calls  sync.WaitGroup  // incremented with mu held, and only before Runtime.Close begins
	life   context.Context // canceled with ErrClosed when Runtime.Close begins
	cancel context.CancelCauseFunc
}

// closedError returns ErrClosed if Runtime.Close has begun, and otherwise nil.
func (c *creation) closedError() error { return context.Cause(c.life) }

// beginCall begins a call that creates an object. After success, the call must end with endCall.
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

// beginJoin begins a call that creates a group, and therefore waits for other ranks. Runtime.Close
// cancels joinCtx, so that the wait ends. After success, the call must end with `return done(err)`.
func (c *creation) beginJoin(
	ctx context.Context,
) (joinCtx context.Context, done func(error) error, err error) {
	if err := c.beginCall(); err != nil {
		return nil, nil, err
	}

	joinCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	done = func(err error) error {
		defer c.endCall()
		stop()
		cancel(nil)
		if err != nil {
			return cmp.Or(c.closedError(), err) // Close may be the reason for err
		}

		return nil
	}
	return joinCtx, done, nil
}

// close makes new calls fail. It returns false if it has been called before.
func (c *creation) close() (isFirst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFirst = c.life.Err() == nil
	c.cancel(fmt.Errorf("runtime: %w", ErrClosed))
	return isFirst
}

// await waits for the calls in progress. It has a deadline, because Runtime.Close may run in a
// signal handler that has interrupted such a call.
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
