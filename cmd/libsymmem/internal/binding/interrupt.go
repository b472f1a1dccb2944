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
// Ctrl-C. A waiting call polls a function of the caller that was passed to SetPoll.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if calls cannot be interrupted
}

type pollFunctions struct {
	// pollOnThread is called on the thread of the waiting call, with no lock of this package held.
	pollOnThread func() bool
	// pollInCollective is called during a collective, on any thread, with the stream's lock held.
	pollInCollective func() bool

	spareSlice atomic.Pointer[timeSlice] // for the next runResumable; may be nil
}

// SetPoll sets functions that return true to interrupt a call. A nil onThread removes both.
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
	if p == nil || !p.pollInCollective() {
		return nil
	}

	return interruptedError("waiting in a collective")
}

const pollInterval = 100 * time.Millisecond // between calls of pollOnThread

// runResumable runs a call that only waits, such as for a stream. After pollInterval, the context
// of the call ends, and runResumable polls and repeats the call. operation is for errors.
func (i *interrupts) runResumable(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	for {
		slice := p.spareSlice.Swap(nil)
		if slice == nil {
			slice = newTimeSlice(pollInterval)
		}

		err := call(slice)
		isUnused := slice.stop()
		if isUnused {
			p.spareSlice.Store(slice) // saves an allocation
		}

		if !errors.Is(err, errTimeSlice) {
			return err
		}

		if p.pollOnThread() {
			return interruptedError(operation)
		}
	}
}

// timeSlice is a context whose duration begins with the first call of Done or Err. A call that does
// not wait uses neither, and needs no timer.
type timeSlice struct {
	duration time.Duration

	mu   sync.Mutex
	end  time.Time     // zero before the first call of Done or Err; guarded by mu
	done chan struct{} // nil before the first call of Done; guarded by mu

	timer *time.Timer // closes done; nil before the first call of Done; guarded by mu
}

// errTimeSlice is the error of a timeSlice that has ended.
var errTimeSlice = errors.New("the time slice of a wait has expired")

func newTimeSlice(duration time.Duration) *timeSlice { return &timeSlice{duration: duration} }

// beginLocked begins the time slice on its first call. The caller holds mu.
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

// Deadline implements context.Context. The call is repeated, so it has no deadline.
func (t *timeSlice) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (t *timeSlice) Value(any) any { return nil }

// stop stops the timer. A time slice that has not begun is unused, and can be used again.
func (t *timeSlice) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}

	return t.end.IsZero()
}

// maxCancelWait limits the wait for an interrupted call to end.
const maxCancelWait = 500 * time.Millisecond

// runInterruptible runs a call on another goroutine and polls. operation is for errors. An
// interrupt cancels the call's context, but the call may still run when runInterruptible returns:
// after an error, do not read variables that the call writes.
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
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return err
		case <-ticker.C:
			if !p.pollOnThread() {
				continue
			}

			cancel(interruptedError(operation))
			select { // give the call time to end
			case <-done:
			case <-time.After(maxCancelWait):
			}

			return interruptedError(operation)
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
