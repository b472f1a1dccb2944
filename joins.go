package symmem

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// joins are the groups of a Runtime that are being made.
type joins struct {
	under map[*context.CancelCauseFunc]struct{}
	all   sync.WaitGroup
}

// end ends the making of all groups.
func (j *joins) end() {
	for cancel := range j.under {
		(*cancel)(fmt.Errorf("runtime: %w", ErrClosed))
	}
}

// wait waits until none is being made, at the given time at the latest: a handler of a signal that
// runs in the making of a group may close the Runtime. No more may begin.
func (j *joins) wait(due time.Time) {
	over := make(chan struct{})
	go func() {
		j.all.Wait()
		close(over)
	}()
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// beginJoin notes that a group is being made, until done is called. The context ends when the
// Runtime is closed, and done makes ErrClosed of an error that comes of it.
func (rt *Runtime) beginJoin(
	ctx context.Context,
) (joining context.Context, done func(error) error, err error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, nil, fmt.Errorf("runtime: %w", ErrClosed)
	}
	joining, cancel := context.WithCancelCause(ctx)
	if rt.joins.under == nil {
		rt.joins.under = map[*context.CancelCauseFunc]struct{}{}
	}
	rt.joins.under[&cancel] = struct{}{}
	rt.joins.all.Add(1)
	return joining, func(err error) error {
		defer rt.joins.all.Done()
		rt.mu.Lock()
		delete(rt.joins.under, &cancel)
		closed := rt.closed
		rt.mu.Unlock()
		cancel(nil)
		if err != nil && closed {
			return fmt.Errorf("runtime: %w", ErrClosed)
		}
		return err
	}, nil
}
