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

// interrupts polls the caller during waits, so that the caller can interrupt them.
type interrupts struct {
	poll atomic.Pointer[pollFunctions] // nil if the caller has set none
}

// pollFunctions holds functions of the caller that return true to interrupt a wait.
type pollFunctions struct {
	// pollOnThread is called on the waiting thread, without locks of this package.
	pollOnThread func() bool
	// pollInCollective is called during a collective, on any thread, with the stream's lock held.
	pollInCollective func() bool
	reusableSlice    atomic.Pointer[timeSlice] // a time slice that has not begun, or nil
}

// SetPoll sets the functions that report whether to interrupt a wait. A nil onThread disables both.
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

func errInterrupted(operation string) error {
	return fmt.Errorf("%s: %w", operation, symmem.ErrInterrupted)
}

// pollInCollective returns an error if the caller wants to interrupt a collective.
func (i *interrupts) pollInCollective() error {
	if p := i.poll.Load(); p != nil && p.pollInCollective() {
		return errInterrupted("waiting in a collective")
	}
	return nil
}

// runResumable runs a call that only waits, and polls the caller every pollInterval. It lets the
// call's context expire for each poll, and then repeats the call.
func (i *interrupts) runResumable(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	for {
		ctx := p.reusableSlice.Swap(nil)
		if ctx == nil {
			ctx = newTimeSlice(pollInterval)
		}
		err := call(ctx)
		isUnused := ctx.stop()
		if isUnused {
			p.reusableSlice.Store(ctx)
		}
		if !errors.Is(err, errTimeSlice) {
			return err
		}
		if p.pollOnThread() {
			return errInterrupted(operation)
		}
	}
}

// runInterruptible runs a call on another goroutine and polls the caller in the meantime. After an
// interrupt, it cancels the context and returns within maxCancelWait, even if the call is still
// running.
func (i *interrupts) runInterruptible(operation string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	err := errors.New("the call ended without a result") // replaced before done is closed
	done := make(chan struct{})
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
			cancel(errInterrupted(operation))
			select {
			case <-done:
			case <-time.After(maxCancelWait):
			}
			return errInterrupted(operation)
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

// timeSlice is a context that begins with the first call of Done or Err, and expires after its
// duration. A call that does not wait starts no timer.
type timeSlice struct {
	duration time.Duration

	mu     sync.Mutex
	expiry time.Time     // zero until the slice begins; guarded by mu
	done   chan struct{} // guarded by mu
	timer  *time.Timer   // guarded by mu
}

func newTimeSlice(duration time.Duration) *timeSlice { return &timeSlice{duration: duration} }

// expiryLocked returns the time at which the slice expires. The first call begins the slice.
func (t *timeSlice) expiryLocked() time.Time {
	if t.expiry.IsZero() {
		t.expiry = time.Now().Add(t.duration)
	}
	return t.expiry
}

// Deadline returns no deadline, because the wait continues after the slice.
func (t *timeSlice) Deadline() (time.Time, bool) { return time.Time{}, false }

func (t *timeSlice) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.expiryLocked()), func() { close(t.done) })
	}
	return t.done
}

func (t *timeSlice) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.expiryLocked()) {
		return nil
	}
	return errTimeSlice
}

func (t *timeSlice) Value(any) any { return nil }

// stop stops the timer. If the slice has not begun, it can be used again.
func (t *timeSlice) stop() (isUnused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	return t.expiry.IsZero()
}
