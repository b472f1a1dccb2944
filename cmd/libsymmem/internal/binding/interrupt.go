package binding

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"symmem"
)

// interrupts lets C callers interrupt waiting calls, for example when a Python user presses Ctrl-C.
type interrupts struct {
	poll          atomic.Pointer[pollFunctions] // nil if calls cannot be interrupted
	unusedTimeout atomic.Pointer[lazyTimeout]   // for the next runResumable, or nil
}

// pollFunctions holds functions that return true to interrupt a call.
type pollFunctions struct {
	onThread     func() bool // runs on the thread of the waiting call, with no lock held
	inCollective func() bool // runs on any thread, with the lock of a stream held
}

// SetPoll sets functions that return true to interrupt a call. Collectives call inCollective while
// they wait. Other waiting calls call onThread. If both are nil, calls cannot be interrupted.
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

// runInterruptible runs a call on another goroutine, and polls until the call ends. After an
// interrupt, runInterruptible may return before the call ends.
func (i *interrupts) runInterruptible(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	err := errors.New("the call ended without a result") // remains after a runtime.Goexit
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

// runResumable runs a call that only waits, such as for a stream, on the calling goroutine. Every
// pollInterval, it cancels the call, polls, and repeats the call.
func (i *interrupts) runResumable(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	for {
		ctx := i.unusedTimeout.Swap(nil)
		if ctx == nil {
			ctx = newLazyTimeout(pollInterval)
		}

		err := call(ctx)
		isUnused := ctx.stop()
		if isUnused {
			i.unusedTimeout.Store(ctx) // saves an allocation
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
