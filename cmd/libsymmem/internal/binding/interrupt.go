package binding

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"symmem"
)

// interrupts lets C callers interrupt waiting calls, for example when a Python user presses Ctrl-C.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if calls cannot be interrupted
}

// pollFunctions holds functions that return true to interrupt a call.
type pollFunctions struct {
	onThread     func() bool // runs on the thread of the waiting call, with no lock held
	inCollective func() bool // runs on any thread, with the lock of a stream held

	unusedTimeout atomic.Pointer[lazyTimeout] // for the next runResumable; nil if there is none
}

// SetPoll sets functions that return true to interrupt a call. A collective calls inCollective
// while it waits, and other calls call onThread. If onThread is nil, calls cannot be interrupted.
func (i *interrupts) SetPoll(onThread, inCollective func() bool) {
	if onThread == nil {
		i.poll.Store(nil)
		return
	}

	i.poll.Store(&pollFunctions{onThread: onThread, inCollective: inCollective})
}

// pollInCollective returns an error if inCollective interrupts the collective.
func (i *interrupts) pollInCollective() error {
	p := i.poll.Load()
	isInterrupted := p != nil && p.inCollective()
	if isInterrupted {
		return interruptedError("waiting in a collective")
	}

	return nil
}

func interruptedError(operation string) error {
	return fmt.Errorf("%s: %w", operation, symmem.ErrInterrupted)
}

const (
	pollInterval  = 100 * time.Millisecond // between calls of onThread
	maxCancelWait = 500 * time.Millisecond // for the end of an interrupted call
)

// runInterruptible runs a call on another goroutine while it polls. After an interrupt, the call
// may still be running.
func (i *interrupts) runInterruptible(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	err := errors.New("the call ended without a result") // if it calls runtime.Goexit
	done := make(chan struct{})                          // closed when err is final
	go func() {
		defer close(done)
		err = CatchPanic(func() error { return call(ctx) })
	}()
	isDone := p.pollUntil(done)
	if isDone {
		return err
	}

	cancel(interruptedError(operation))
	select { // give the call time to end
	case <-done:
	case <-time.After(maxCancelWait):
	}

	return interruptedError(operation)
}

// getInterruptible is like runInterruptible, for a call with a result.
func getInterruptible[T any](
	i *interrupts, operation string, call func(context.Context) (T, error),
) (T, error) {
	var result T
	err := i.runInterruptible(operation, func(ctx context.Context) error {
		r, err := call(ctx)
		result = r
		return err
	})
	if err != nil {
		var none T
		return none, err // the call may still be writing result
	}

	return result, nil
}

// pollUntil returns true when done is closed, or false when onThread interrupts the wait.
func (p *pollFunctions) pollUntil(done <-chan struct{}) (isDone bool) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return true
		case <-ticker.C:
			isInterrupted := p.onThread()
			if isInterrupted {
				return false
			}
		}
	}
}

// CatchPanic runs a call and converts a panic to an error.
func CatchPanic(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPanic, r, debug.Stack())
		}
	}()
	return call()
}

// runResumable runs a call that only waits, such as for a stream, on the calling goroutine. It
// cancels the call every pollInterval, polls, and repeats the call.
func (i *interrupts) runResumable(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	for {
		ctx := p.unusedTimeout.Swap(nil)
		if ctx == nil {
			ctx = newLazyTimeout(pollInterval)
		}

		err := call(ctx)
		isUnused := ctx.stop()
		if isUnused {
			p.unusedTimeout.Store(ctx) // saves an allocation
		}

		hasExpired := errors.Is(err, errLazyTimeout)
		if !hasExpired {
			return err
		}

		isInterrupted := p.onThread()
		if isInterrupted {
			return interruptedError(operation)
		}
	}
}

// lazyTimeout is a context that ends a duration after the first call of Done or Err. Calls that do
// not wait call neither, so they need no timer.
type lazyTimeout struct {
	duration time.Duration

	mu    sync.Mutex    // guards the fields below
	end   time.Time     // zero before the first call of Done or Err
	done  chan struct{} // nil before the first call of Done
	timer *time.Timer   // closes done
}

var errLazyTimeout = errors.New("the interval between polls has expired")

func newLazyTimeout(duration time.Duration) *lazyTimeout {
	return &lazyTimeout{duration: duration}
}

// Done implements context.Context.
func (t *lazyTimeout) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startLocked()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.end), func() { close(t.done) })
	}

	return t.done
}

// Err implements context.Context.
func (t *lazyTimeout) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startLocked()
	if time.Now().Before(t.end) {
		return nil
	}

	return errLazyTimeout
}

func (t *lazyTimeout) startLocked() {
	if t.end.IsZero() {
		t.end = time.Now().Add(t.duration)
	}
}

// Deadline implements context.Context. Waits that end early are repeated, so there is no deadline.
func (t *lazyTimeout) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (t *lazyTimeout) Value(any) any { return nil }

// stop stops the timer. It returns true if neither Done nor Err has been called.
func (t *lazyTimeout) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}

	return t.end.IsZero()
}
