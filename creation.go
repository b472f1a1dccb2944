package symmem

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// creation counts the calls in progress that create an object, so that Runtime.Close can wait for
// the calls and find the objects.
type creation struct {
	mu    *ranked.Mutex[runtimeMu]
	calls sync.WaitGroup // incremented with mu held, before life ends
	// life is canceled by end, with ErrClosed as its cause, when Close begins.
	life context.Context
	end  context.CancelCauseFunc
}

// usable returns ErrClosed once Close has begun.
func (c *creation) usable() error { return context.Cause(c.life) }

// begin counts a call that creates an object. The caller must call done when the call ends.
func (c *creation) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	c.calls.Add(1)
	return nil
}

func (c *creation) done() { c.calls.Done() }

// join is like begin, but for a call that creates a group. The returned context is canceled when
// Close begins, in which case done replaces the resulting error with ErrClosed.
func (c *creation) join(
	ctx context.Context,
) (joinCtx context.Context, done func(error) error, err error) {
	if err := c.begin(); err != nil {
		return nil, nil, err
	}
	joinCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return joinCtx, func(err error) error {
		defer c.done()
		stop()
		cancel(nil)
		if err != nil {
			return cmp.Or(c.usable(), err)
		}
		return nil
	}, nil
}

// close prevents further calls, and returns false if it has been called before.
func (c *creation) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := c.life.Err() != nil
	c.end(fmt.Errorf("runtime: %w", ErrClosed))
	return !closed
}

// await waits for the calls in progress, but not beyond due: if Close runs in a signal handler that
// has interrupted one of these calls, the call cannot return.
func (c *creation) await(due time.Time) {
	done := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Until(due)):
	}
}
