package symmem

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// callers counts the calls that work with a pool, and lets none begin once the pool closes. A call
// looks at buffers first and queues work on them later: in between only this keeps their memory and
// their windows. It is two atomic additions on the way of a collective.
//
// The lower half of word counts calls, the upper one the Closes that wait or have succeeded.
type callers struct{ word atomic.Int64 }

const aClose = 1 << 32

// enter begins a call, which ends with leave; or it returns ErrClosed, and the call does not begin.
func (c *callers) enter() error {
	if c.word.Add(1) >= aClose {
		c.word.Add(-1)
		return errPoolClosed
	}
	return nil
}

func (c *callers) leave() { c.word.Add(-1) }

var errPoolClosed = fmt.Errorf("pool: %w", ErrClosed)

// refused reports whether calls may not begin.
func (c *callers) refused() bool { return c.word.Load() >= aClose }

// refuse lets no call begin, and waits for those that have. An error is that of the context: calls
// may begin again then, as after allow.
func (c *callers) refuse(ctx context.Context) error {
	c.word.Add(aClose)
	for pause := time.Microsecond; c.word.Load()%aClose != 0; pause = min(2*pause, time.Millisecond) {
		select {
		case <-ctx.Done():
			c.allow()
			return fmt.Errorf("waiting for calls with its buffers: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}

// allow takes a refuse back.
func (c *callers) allow() { c.word.Add(-aClose) }

// enter begins a call with memory of two pools, of which each may be nil, or both the same one. It
// ends with leave.
func enter(a, b *Pool) error {
	if a != nil {
		if err := a.callers.enter(); err != nil {
			return err
		}
	}
	if b == nil || b == a {
		return nil
	}
	err := b.callers.enter()
	if err != nil && a != nil {
		a.callers.leave()
	}
	return err
}

func leave(a, b *Pool) {
	if a != nil {
		a.callers.leave()
	}
	if b != nil && b != a {
		b.callers.leave()
	}
}
