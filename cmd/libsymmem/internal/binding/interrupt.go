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

// A user of Python may press Ctrl-C while a call waits. So a waiting call polls: it calls a
// function, set by SetPoll, that returns true to interrupt the call.
//
//   - runResumable runs a call that only waits, such as the synchronization of a stream. It stops
//     the wait after 100 ms, polls, and starts the wait again.
//   - runInterruptible runs other calls on a second goroutine, and polls every 100 ms.
//   - pollInCollective polls while symmem waits in a collective.

// interrupts holds the functions of the caller that are polled.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if the caller has set none
}

type pollFunctions struct {
	// pollOnThread is called on the thread of the waiting call. No lock of this package is held.
	pollOnThread func() bool
	// pollInCollective is called during a collective, on any thread. The stream's lock is held.
	pollInCollective func() bool
	// spareSlice can be used by the next call of runResumable. It is nil if there is none.
	spareSlice atomic.Pointer[timeSlice]
}

// SetPoll sets functions that return true to interrupt a call. If onThread is nil, no call is
// interrupted, and inCollective is not called either.
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

// pollInCollective returns an error if the caller wants to interrupt a collective.
func (i *interrupts) pollInCollective() error {
	p := i.poll.Load()
	isInterrupted := p != nil && p.pollInCollective()
	if isInterrupted {
		return interruptedError("waiting in a collective")
	}

	return nil
}

const pollInterval = 100 * time.Millisecond // between calls of pollOnThread

// runResumable runs a call that can be stopped and started again. operation describes it in errors.
// The context of the call ends after pollInterval, so that runResumable can poll.
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

		hasStoppedToPoll := errors.Is(err, errTimeSlice)
		if !hasStoppedToPoll {
			return err
		}

		if p.pollOnThread() {
			return interruptedError(operation)
		}
	}
}

// timeSlice is a context that ends some time after the first call of Done or Err. A call that does
// not have to wait calls neither, so it starts no timer.
type timeSlice struct {
	duration time.Duration

	mu   sync.Mutex
	end  time.Time     // zero before the first call of Done or Err; guarded by mu
	done chan struct{} // nil before the first call of Done; guarded by mu

	// timer closes done. It is nil before the first call of Done. Guarded by mu.
	timer *time.Timer
}

// errTimeSlice is the error of a timeSlice that has ended.
var errTimeSlice = errors.New("the time slice of a wait has expired")

func newTimeSlice(duration time.Duration) *timeSlice { return &timeSlice{duration: duration} }

// beginLocked begins the time slice, unless it has already begun. The caller holds mu.
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

// Deadline implements context.Context. There is no deadline, because the call is started again.
func (t *timeSlice) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (t *timeSlice) Value(any) any { return nil }

// stop stops the timer. It returns true if the time slice has not begun, and can be used again.
func (t *timeSlice) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}

	return t.end.IsZero()
}

// maxCancelWait limits the wait for a call whose context was canceled.
const maxCancelWait = 500 * time.Millisecond

// runInterruptible runs a call on another goroutine and polls in the meantime. operation describes
// it in errors. An interrupt cancels the context of the call.
//
// After an interrupt, the call may still be running when runInterruptible returns. So after an
// error, the caller must not read variables that the call writes.
func (i *interrupts) runInterruptible(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	// This error stays only if the call ends its goroutine with runtime.Goexit.
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
