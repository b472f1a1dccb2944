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
// for them before it closes these objects. Calls that begin later fail with ErrClosed.
type creation struct {
	mu     *ranked.Mutex[runtimeMu]
	calls  sync.WaitGroup  // incremented with mu held, and only while life is not canceled
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

// beginJoin is beginCall for calls that wait for other ranks: Runtime.Close cancels joinCtx to end
// the wait. After success, the caller must return the result of done(err).
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

// close makes new calls fail. It reports whether this is the first close.
func (c *creation) close() (isFirst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFirst = c.life.Err() == nil
	c.cancel(fmt.Errorf("runtime: %w", ErrClosed))
	return isFirst
}

// await waits for the calls in progress until the deadline. Without one, Runtime.Close would hang
// in a signal handler that has interrupted such a call.
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
