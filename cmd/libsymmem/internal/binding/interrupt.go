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

// interrupts calls functions of the caller during waits. With them, the caller can interrupt a
// wait, for example when Python has received a signal.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if the caller has set none
}

// pollFunctions holds functions of the caller that return true to interrupt a wait.
type pollFunctions struct {
	// pollOnThread is called on the waiting thread, without locks of this package.
	pollOnThread func() bool
	// pollInCollective is called during a collective, on any thread, with the stream's lock held.
	pollInCollective func() bool
	// spareSlice is a time slice that the next call of runResumable can use, or nil. It saves an
	// allocation.
	spareSlice atomic.Pointer[timeSlice]
}

// SetPoll sets the functions that report whether to interrupt a wait. If onThread is nil, no wait
// is interrupted, and inCollective is not called either.
func (i *interrupts) SetPoll(onThread, inCollective func() bool) {
	if onThread == nil {
		i.poll.Store(nil)
		return
	}

	i.poll.Store(&pollFunctions{pollOnThread: onThread, pollInCollective: inCollective})
}

const (
	pollInterval  = 100 * time.Millisecond // time between calls of pollOnThread
	maxCancelWait = 500 * time.Millisecond // maximum wait for a call that was canceled
)

var errTimeSlice = errors.New("the time slice of a wait has expired")

func interruptedError(operation string) error {
	return fmt.Errorf("%s: %w", operation, symmem.ErrInterrupted)
}

// pollInCollective returns an error if the caller wants to interrupt a collective.
func (i *interrupts) pollInCollective() error {
	if p := i.poll.Load(); p != nil && p.pollInCollective() {
		return interruptedError("waiting in a collective")
	}

	return nil
}

// runResumable runs a call that only waits, and polls the caller every pollInterval. Before each
// poll, the call must return, so its context is a time slice. After the poll, runResumable repeats
// the call.
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
		if isUnused { // the call did not have to wait
			p.spareSlice.Store(slice)
		}

		if !errors.Is(err, errTimeSlice) {
			return err
		}

		if p.pollOnThread() {
			return interruptedError(operation)
		}
	}
}

// runInterruptible runs a call on another goroutine and polls the caller in the meantime. After an
// interrupt, it cancels the context and returns within maxCancelWait, even if the call is still
// running. The caller must therefore not read variables of the call after an error.
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

// timeSlice is a context that expires after its duration. It begins with the first call of Done or
// Err. A call that does not wait does not use its context, so it starts no timer.
type timeSlice struct {
	duration time.Duration

	mu     sync.Mutex
	expiry time.Time     // zero until the slice begins; guarded by mu
	done   chan struct{} // nil before the first call of Done; guarded by mu
	timer  *time.Timer   // closes done; nil before the first call of Done; guarded by mu
}

func newTimeSlice(duration time.Duration) *timeSlice { return &timeSlice{duration: duration} }

// beginLocked begins the slice, unless it has already begun.
func (t *timeSlice) beginLocked() {
	if t.expiry.IsZero() {
		t.expiry = time.Now().Add(t.duration)
	}
}

// Deadline returns no deadline, because the wait continues after the slice.
func (t *timeSlice) Deadline() (time.Time, bool) { return time.Time{}, false }

func (t *timeSlice) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginLocked()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.expiry), func() { close(t.done) })
	}

	return t.done
}

func (t *timeSlice) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginLocked()
	if time.Now().Before(t.expiry) {
		return nil
	}

	return errTimeSlice
}

func (t *timeSlice) Value(any) any { return nil }

// stop stops the timer. It returns true if the slice has not begun, so that it can be used again.
func (t *timeSlice) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}

	return t.expiry.IsZero()
}
