package symmem

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// creation counts calls that create groups, pools and streams, because Runtime.Close must wait for
// them before it closes the created objects.
type creation struct {
	mu     *ranked.Mutex[runtimeMu]
	calls  sync.WaitGroup  // incremented with mu held, and only before Runtime.Close begins
	life   context.Context // canceled with ErrClosed when Runtime.Close begins
	cancel context.CancelCauseFunc
}

func (c *creation) closedError() error { return context.Cause(c.life) }

// beginCall requires a later endCall, unless it fails.
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

// beginJoin is for a call that creates a group. Runtime.Close cancels joinCtx. The call must end
// with `return done(err)`.
func (c *creation) beginJoin(
	ctx context.Context,
) (joinCtx context.Context, done func(error) error, err error) {
	if err := c.beginCall(); err != nil {
		return nil, nil, err
	}

	joinCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return joinCtx, func(err error) error {
		defer c.endCall()
		stop()
		cancel(nil)
		if err != nil {
			return cmp.Or(c.closedError(), err)
		}

		return nil
	}, nil
}

// close returns false if it has been called before.
func (c *creation) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasClosed := c.life.Err() != nil
	c.cancel(fmt.Errorf("runtime: %w", ErrClosed))
	return !wasClosed
}

// await has a deadline, because Runtime.Close may run in a signal handler that has interrupted a
// call.
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
