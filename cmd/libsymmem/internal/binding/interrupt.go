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

// interrupts lets the caller interrupt waiting calls, for example when a Python user presses
// Ctrl-C. While a call waits, it polls the caller's functions from SetPoll.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if calls cannot be interrupted
}

type pollFunctions struct {
	// pollOnThread is called on the thread of the waiting call, with no lock of this package held.
	pollOnThread func() bool
	// pollInCollective is called during a collective, on any thread, with the stream's lock held.
	pollInCollective func() bool

	unusedSlice atomic.Pointer[timeSlice] // for the next runResumable; nil if there is none
}

// SetPoll sets functions that return true to interrupt a call. If onThread is nil, calls can no
// longer be interrupted.
func (i *interrupts) SetPoll(onThread, inCollective func() bool) {
	if onThread == nil {
		i.poll.Store(nil)
		return
	}

	i.poll.Store(&pollFunctions{pollOnThread: onThread, pollInCollective: inCollective})
}

func interruptedError(operation string) error {
	return fmt.Errorf("%s: %w", operation, symmem.ErrInterrupted)
}

// pollInCollective returns an error if the caller interrupts a waiting collective.
func (i *interrupts) pollInCollective() error {
	p := i.poll.Load()
	isInterrupted := p != nil && p.pollInCollective()
	if isInterrupted {
		return interruptedError("waiting in a collective")
	}

	return nil
}

const pollInterval = 100 * time.Millisecond // between calls of pollOnThread

// runResumable runs a call that only waits, such as for a stream, in time slices of pollInterval.
// At the end of each, it polls and repeats the call. operation is for errors.
func (i *interrupts) runResumable(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	for {
		ctx := p.unusedSlice.Swap(nil)
		if ctx == nil {
			ctx = newTimeSlice(pollInterval)
		}

		err := call(ctx)
		isUnused := ctx.stop()
		if isUnused {
			p.unusedSlice.Store(ctx) // saves an allocation
		}

		if !errors.Is(err, errTimeSlice) {
			return err
		}

		if p.pollOnThread() {
			return interruptedError(operation)
		}
	}
}

// timeSlice is a context that begins with the first call of Done or Err, and ends after a duration.
// An operation that does not wait calls neither, so it needs no timer.
type timeSlice struct {
	duration time.Duration

	mu   sync.Mutex
	end  time.Time     // zero before the first call of Done or Err; guarded by mu
	done chan struct{} // nil before the first call of Done; guarded by mu

	timer *time.Timer // closes done; nil if done is nil; guarded by mu
}

var errTimeSlice = errors.New("the time slice of a wait has expired")

func newTimeSlice(duration time.Duration) *timeSlice { return &timeSlice{duration: duration} }

// beginLocked sets end, unless it is set already. The caller holds mu.
func (t *timeSlice) beginLocked() {
	if t.end.IsZero() {
		t.end = time.Now().Add(t.duration)
	}
}

// Done implements context.Context.
func (t *timeSlice) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginLocked()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.end), func() { close(t.done) })
	}

	return t.done
}

// Err implements context.Context.
func (t *timeSlice) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginLocked()
	if time.Now().Before(t.end) {
		return nil
	}

	return errTimeSlice
}

// Deadline implements context.Context. The work has no deadline, and continues in the next slice.
func (t *timeSlice) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (t *timeSlice) Value(any) any { return nil }

// stop stops the timer. A time slice that has not begun is unused.
func (t *timeSlice) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}

	return t.end.IsZero()
}

const maxCancelWait = 500 * time.Millisecond // for the end of an interrupted call

// runInterruptible runs a call on another goroutine, and polls. operation is for errors. After an
// error, do not read variables that the call writes, because it may still be running.
func (i *interrupts) runInterruptible(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// The call replaces this error, unless it ends with runtime.Goexit.
	err := errors.New("the call ended without a result")
	done := make(chan struct{}) // closed when err is final
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

// pollUntil returns true when done is closed, or false when the caller interrupts the wait.
func (p *pollFunctions) pollUntil(done <-chan struct{}) (isDone bool) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return true
		case <-ticker.C:
			isInterrupted := p.pollOnThread()
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
