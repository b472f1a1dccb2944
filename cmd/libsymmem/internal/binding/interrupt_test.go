package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// interruptAtPoll interrupts waiting calls, except for collectives, at the nth poll. It returns a
// counter of the polls.
func interruptAtPoll(l *Library, nth int) (polls *int) {
	polls = new(int)
	pollOnThread := func() bool {
		*polls++
		return *polls >= nth
	}
	neverInCollective := func() bool { return false }
	l.SetPoll(pollOnThread, neverInCollective)
	return polls
}

// neverInterrupt is more polls than there are in a minute.
const neverInterrupt = int(time.Minute/pollInterval) + 1

func TestInterruptedSynchronizeCanBeRepeated(t *testing.T) {
	const nth = 3 // the wait continues after the first two polls
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	unblock := blockStream(t, r, defaultStream)
	polls := interruptAtPoll(l, nth)
	err = l.Synchronize(defaultStream)
	if CodeOf(err) != CodeInterrupted || *polls != nth {
		t.Errorf("interrupted Synchronize = %v after %d polls, want an error with code %v after %d", err,
			*polls, CodeInterrupted, nth)
	}

	unblock()
	interruptAtPoll(l, neverInterrupt)
	if err := l.Synchronize(defaultStream); err != nil {
		t.Errorf("second Synchronize = %v, want nil", err)
	}
}

// The poll function can be slow, so calls that do not wait do not call it.
func TestCallsThatReturnImmediatelyDoNotPoll(t *testing.T) {
	const barrier = int(symmem.OpBarrier)
	l, _ := openLibrary(t, hostOptions)
	polls := interruptAtPoll(l, 1)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	if err := l.Synchronize(defaultStream); err != nil {
		t.Errorf("Synchronize = %v, want nil", err)
	}

	if err := l.Do(world, &Arguments{Operation: barrier}); err != nil {
		t.Errorf("barrier = %v, want nil", err)
	}

	if err := l.Check(world); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}

	if *polls != 0 {
		t.Errorf("the calls polled %d times, want 0", *polls)
	}
}

// An interrupt ends the wait for a call, even if the call ignores its context.
func TestInterruptedCallThatDoesNotReturnIsAbandoned(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	interruptAtPoll(l, 1)
	const operation = "waiting" // arbitrary
	release := make(chan struct{})
	defer close(release) // ends the goroutine of the abandoned call
	waitForContext := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	ignoreContext := func(context.Context) error {
		<-release
		return nil
	}
	if err := l.runInterruptible(operation, waitForContext); !errors.Is(err, symmem.ErrInterrupted) {
		t.Errorf("call that waits for its context: got %v, want %v", err, symmem.ErrInterrupted)
	}

	if err := l.runInterruptible(operation, ignoreContext); !errors.Is(err, symmem.ErrInterrupted) {
		t.Errorf("call that ignores its context: got %v, want %v", err, symmem.ErrInterrupted)
	}
}

func TestPanicOfInterruptibleCallIsReturned(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	interruptAtPoll(l, neverInterrupt) // makes the call run on another goroutine
	err := l.runInterruptible("working", func(context.Context) error { panic("a mistake") })
	if CodeOf(err) != CodePanic {
		t.Errorf("call that panics: got %v, want an error with code %v", err, CodePanic)
	}
}

// A lazyTimeout begins with the first call of Err or Done.
func TestTimeSliceExpires(t *testing.T) {
	if !newLazyTimeout(time.Hour).stop() {
		t.Error("stop() = false for a new lazyTimeout, want true")
	}

	slow := newLazyTimeout(time.Hour)
	if err := slow.Err(); err != nil { // begins the interval
		t.Errorf("Err() = %v at the beginning of an hour, want nil", err)
	}

	if slow.stop() {
		t.Error("stop() = true for a lazyTimeout that has begun, want false")
	}

	quick := newLazyTimeout(time.Millisecond)
	select {
	case <-quick.Done():
	case <-time.After(time.Minute):
		t.Fatal("a lazyTimeout of a millisecond did not expire within a minute")
	}

	if cause := context.Cause(quick); !errors.Is(cause, errLazyTimeout) {
		t.Errorf("cause = %v, want %v", cause, errLazyTimeout)
	}
}
