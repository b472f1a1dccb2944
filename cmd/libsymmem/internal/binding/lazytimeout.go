package binding

import (
	"errors"
	"sync"
	"time"
)

// lazyTimeout is a context that ends a duration after the first call of Done or Err. It creates no
// timer for calls that do not wait.
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
