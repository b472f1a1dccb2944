package symmem

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"symmem/internal/ranked"
)

// creation counts calls that create something that Close of the Runtime has to find.
type creation struct {
	mu    *ranked.Mutex[runtimeMu]
	calls sync.WaitGroup // grows with mu held, and before life ends
	// life ends when Close begins, by end, with ErrClosed as its cause.
	life context.Context
	end  context.CancelCauseFunc
}

// usable returns ErrClosed once Close has begun.
func (c *creation) usable() error { return context.Cause(c.life) }

// begin counts a call that creates something, until done.
func (c *creation) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	c.calls.Add(1)
	return nil
}

// done ends a call that begin has counted.
func (c *creation) done() { c.calls.Done() }

// join is begin for a call that creates a group. The context ends when Close begins, and done turns
// the resulting error into ErrClosed.
func (c *creation) join(
	ctx context.Context,
) (joining context.Context, done func(error) error, err error) {
	if err := c.begin(); err != nil {
		return nil, nil, err
	}
	joining, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return joining, func(err error) error {
		defer c.done()
		stop()
		cancel(nil)
		if err != nil {
			return cmp.Or(c.usable(), err)
		}
		return nil
	}, nil
}

// close refuses further calls. It returns false if it was called before.
func (c *creation) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := c.life.Err() != nil
	c.end(fmt.Errorf("runtime: %w", ErrClosed))
	return !closed
}

// await waits for the calls under way until a given time: Close may run in a signal handler inside
// of one.
func (c *creation) await(due time.Time) {
	over := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(time.Until(due)):
	}
}
