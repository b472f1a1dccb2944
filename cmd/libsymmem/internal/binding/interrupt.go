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

// interrupts ends waits of callers that want to leave them.
type interrupts struct{ poll atomic.Pointer[poll] }

// poll is what callers are asked while they wait; both functions report whether the wait is to end.
type poll struct {
	// here is called on the thread that waits, with no lock of ours held.
	here func() bool
	// inCollective is called in the middle of a collective, on any thread, with its stream's lock
	// held.
	inCollective func() bool
	// spare is a slice of a wait that nobody has waited for.
	spare atomic.Pointer[tick]
}

// SetPoll sets what callers are asked while they wait, or nil.
func (i *interrupts) SetPoll(here, inCollective func() bool) {
	if here == nil {
		i.poll.Store(nil)
		return
	}
	i.poll.Store(&poll{here: here, inCollective: inCollective})
}

const (
	// asking is the time between two questions to a caller that waits.
	asking = 100 * time.Millisecond
	// leaving is how long a call that is to end may take to do so before its caller leaves it.
	leaving = 500 * time.Millisecond
)

// errTick ends a slice of a wait.
var errTick = errors.New("the slice of a wait is over")

// interrupted is the result of a call that a caller wanted to end.
func interrupted(doing string) error {
	return fmt.Errorf("%s: %w", doing, symmem.ErrInterrupted)
}

// midCollective is what a device asks in the middle of a collective.
func (i *interrupts) midCollective() error {
	if p := i.poll.Load(); p != nil && p.inCollective() {
		return interrupted("waiting in a collective")
	}
	return nil
}

// resumed makes a call that only waits, and may be made again when its context has ended: it is, in
// slices between which the caller is asked. A call that ends at once costs nothing more.
func (i *interrupts) resumed(doing string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	for {
		slice := p.spare.Swap(nil)
		if slice == nil {
			slice = newTick(asking)
		}
		err := call(slice)
		if slice.unused() {
			p.spare.Store(slice)
		}
		if err == nil || !errors.Is(err, errTick) {
			return err
		}
		if p.here() {
			return interrupted(doing)
		}
	}
}

// apart makes a call that may wait for long on a thread of its own, while the caller's is asked. It
// leaves a call that does not end soon after its context has.
func (i *interrupts) apart(doing string, call func(context.Context) error) error {
	p := i.poll.Load()
	if p == nil {
		return call(context.Background())
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	type outcome struct{ err error }
	done := make(chan outcome, 1)
	go func() { done <- outcome{Recovering(func() error { return call(ctx) })} }()
	ticker := time.NewTicker(asking)
	defer ticker.Stop()
	for {
		select {
		case o := <-done:
			return o.err
		case <-ticker.C:
			if !p.here() {
				continue
			}
			cancel(interrupted(doing))
			select {
			case <-done: // says no more than that it was interrupted
			case <-time.After(leaving):
			}
			return interrupted(doing)
		}
	}
}

// Recovering makes a call; a panic is its error.
func Recovering(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPanic, r, debug.Stack())
		}
	}()
	return call()
}

// tick is a context that ends a while after somebody has first asked for its end. Who does not wait
// pays for neither a timer nor a look at the clock.
type tick struct {
	after time.Duration

	mu    sync.Mutex
	over  time.Time     // guarded by mu
	done  chan struct{} // guarded by mu
	timer *time.Timer   // guarded by mu
}

func newTick(after time.Duration) *tick { return &tick{after: after} }

// ends returns when the tick ends. t.mu is held.
func (t *tick) ends() time.Time {
	if t.over.IsZero() {
		t.over = time.Now().Add(t.after)
	}
	return t.over
}

// Deadline returns none: what waits is not late when the slice is over.
func (t *tick) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done returns the channel of the end.
func (t *tick) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		t.timer = time.AfterFunc(time.Until(t.ends()), func() { close(t.done) })
	}
	return t.done
}

// Err returns errTick after the end.
func (t *tick) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.ends()) {
		return nil
	}
	return errTick
}

// Value returns nil.
func (t *tick) Value(any) any { return nil }

// unused ends the tick early, and reports whether nobody has asked for its end: then it can be used
// again.
func (t *tick) unused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	return t.over.IsZero()
}
