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

// interrupts lets callers end calls that wait.
type interrupts struct{ poll atomic.Pointer[poll] }

// poll holds the caller's functions that report whether a wait should end.
type poll struct {
	// onThread is called on the waiting thread, without locks of this package.
	onThread func() bool
	// inCollective is called during a collective, on any thread, with the stream's lock held.
	inCollective func() bool
	// unused holds a slice that no wait has used yet.
	unused atomic.Pointer[slice]
}

// SetPoll sets the functions that waits call to learn whether to end. A nil onThread disables both.
func (i *interrupts) SetPoll(onThread, inCollective func() bool) {
	if onThread == nil {
		i.poll.Store(nil)
		return
	}
	i.poll.Store(&poll{onThread: onThread, inCollective: inCollective})
}

const (
	pollInterval = 100 * time.Millisecond
	// abandonAfter bounds the time that an interrupted call may take to return.
	abandonAfter = 500 * time.Millisecond
)

// errSlice ends a slice of a wait.
var errSlice = errors.New("the slice of a wait has ended")

// interrupted returns the error of an interrupted call.
func interrupted(doing string) error {
	return fmt.Errorf("%s: %w", doing, symmem.ErrInterrupted)
}

// pollInCollective returns an error if the caller wants to end the collective that calls it.
func (i *interrupts) pollInCollective() error {
	if p := i.poll.Load(); p != nil && p.inCollective() {
		return interrupted("waiting in a collective")
	}
	return nil
}

// resumable makes a call that only waits and can be repeated after its context ends. It repeats the
// call with short contexts and polls the caller in between. Calls that return at once are not
// slower.
func (i *interrupts) resumable(doing string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	for {
		ctx := p.unused.Swap(nil)
		if ctx == nil {
			ctx = newSlice(pollInterval)
		}
		err := call(ctx)
		if ctx.stop() {
			p.unused.Store(ctx)
		}
		if err == nil || !errors.Is(err, errSlice) {
			return err
		}
		if p.onThread() {
			return interrupted(doing)
		}
	}
}

// interruptible makes a call on another goroutine and polls the caller meanwhile. If the caller
// wants to end the call, its context is canceled; a call that does not return soon after that is
// abandoned.
func (i *interrupts) interruptible(doing string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	type outcome struct{ err error }
	done := make(chan outcome, 1)
	go func() { done <- outcome{Recovering(func() error { return call(ctx) })} }()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case o := <-done:
			return o.err
		case <-ticker.C:
			if !p.onThread() {
				continue
			}
			cancel(interrupted(doing))
			select {
			case <-done: // the result has no more information
			case <-time.After(abandonAfter):
			}
			return interrupted(doing)
		}
	}
}

// Recovering makes a call and returns a panic as an error.
func Recovering(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPanic, r, debug.Stack())
		}
	}()
	return call()
}

// slice implements a context that ends some time after the first call of Done or Err. A call that
// does not wait needs neither a timer nor a clock reading.
type slice struct {
	after time.Duration

	mu    sync.Mutex
	over  time.Time     // guarded by mu
	done  chan struct{} // guarded by mu
	timer *time.Timer   // guarded by mu
}

func newSlice(after time.Duration) *slice { return &slice{after: after} }

// ends returns the time at which the slice ends. The caller holds t.mu.
func (t *slice) ends() time.Time {
	if t.over.IsZero() {
		t.over = time.Now().Add(t.after)
	}
	return t.over
}

// Deadline returns no deadline: the wait continues after the slice.
func (t *slice) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done returns a channel that is closed at the end.
func (t *slice) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.ends()), func() { close(t.done) })
	}
	return t.done
}

// Err returns errSlice after the end.
func (t *slice) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.ends()) {
		return nil
	}
	return errSlice
}

// Value returns nil.
func (t *slice) Value(any) any { return nil }

// stop ends the slice early. It reports whether Done and Err were never called, so that the slice
// can be used again.
func (t *slice) stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	return t.over.IsZero()
}
