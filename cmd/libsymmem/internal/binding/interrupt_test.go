package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// interruptAtPoll makes waiting calls, except for collectives, end at the nth poll. It returns the
// number of polls so far.
func interruptAtPoll(l *Library, nth int) (count *int) {
	count = new(int)
	pollOnThread := func() bool {
		*count++
		return *count >= nth
	}
	pollInCollective := func() bool { return false }
	l.SetPoll(pollOnThread, pollInCollective)
	return count
}

// neverInterrupt is the number of a poll that no call reaches, even in a minute.
const neverInterrupt = 1_000

func TestInterruptedSynchronizeCanBeRepeated(t *testing.T) {
	const interruptAt = 3 // the wait continues after the first two polls
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	unblock := blockStream(t, r, defaultStream)
	count := interruptAtPoll(l, interruptAt)
	err = l.Synchronize(defaultStream)
	if CodeOf(err) != CodeInterrupted || *count != interruptAt {
		t.Errorf("interrupted Synchronize = %v after %d polls, want an error with code %v after %d", err,
			*count, CodeInterrupted, interruptAt)
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
	const uint8Type = 7 // SYMMEM_UINT8
	l, _ := openLibrary(t, hostOptions)
	count := interruptAtPoll(l, 1)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	if err := l.Synchronize(defaultStream); err != nil {
		t.Errorf("Synchronize = %v, want nil", err)
	}

	if err := l.Do(world, &Arguments{Operation: barrier, Type: uint8Type}); err != nil {
		t.Errorf("barrier = %v, want nil", err)
	}

	if err := l.Check(world); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}

	if *count != 0 {
		t.Errorf("the calls polled %d times, want 0", *count)
	}
}

// An interrupt ends the wait for a call, even if the call ignores its context.
func TestInterruptedCallThatDoesNotReturnIsAbandoned(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	interruptAtPoll(l, 1)
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
	if err := l.runInterruptible("waiting", waitForContext); !errors.Is(err, symmem.ErrInterrupted) {
		t.Errorf("call that waits for its context: got %v, want %v", err, symmem.ErrInterrupted)
	}

	if err := l.runInterruptible("waiting", ignoreContext); !errors.Is(err, symmem.ErrInterrupted) {
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

// A time slice begins with the first call of Err or Done.
func TestTimeSliceExpires(t *testing.T) {
	if !newTimeSlice(time.Hour).stop() {
		t.Error("stop() = false for a new time slice, want true")
	}

	slow := newTimeSlice(time.Hour)
	if err := slow.Err(); err != nil { // begins the time slice
		t.Errorf("Err() = %v at the beginning of an hour, want nil", err)
	}

	if slow.stop() {
		t.Error("stop() = true for a time slice that has begun, want false")
	}

	quick := newTimeSlice(time.Millisecond)
	select {
	case <-quick.Done():
	case <-time.After(time.Minute):
		t.Fatal("a time slice of a millisecond did not expire within a minute")
	}

	if cause := context.Cause(quick); !errors.Is(cause, errTimeSlice) {
		t.Errorf("cause = %v, want %v", cause, errTimeSlice)
	}
}
