package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// interruptAtPoll sets functions that l polls while a call waits. The function for most calls
// requests an interrupt from its nth call on. The function for collectives never does. The result
// counts the calls of the first function.
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

// neverInterrupt is more than the number of polls of any call, which may last a minute.
const neverInterrupt = 1_000

// TestInterruptedSynchronizeCanBeRepeated interrupts a wait for a stream, as Ctrl-C does in Python.
// The interrupt must not affect the stream or a second wait.
func TestInterruptedSynchronizeCanBeRepeated(t *testing.T) {
	const interruptAt = 3 // the wait must also continue after a poll, so more than 1
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

// TestCallsThatReturnImmediatelyDoNotPoll makes calls that have nothing to wait for. They must not
// call the caller's poll function, which can be slow.
func TestCallsThatReturnImmediatelyDoNotPoll(t *testing.T) {
	const barrier = int(symmem.OpBarrier)
	const uint8Type = 7 // SYMMEM_UINT8 in symmem.h
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

// TestInterruptedCallThatDoesNotReturnIsAbandoned interrupts calls at the first poll. The interrupt
// must end the wait, whether or not the call respects its context.
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

// TestPanicOfInterruptibleCallIsReturned checks that a panic on the other goroutine, on which the
// call runs, becomes an error.
func TestPanicOfInterruptibleCallIsReturned(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	// Without a poll function, the call would run on this goroutine.
	interruptAtPoll(l, neverInterrupt)
	err := l.runInterruptible("working", func(context.Context) error { panic("a mistake") })
	if CodeOf(err) != CodePanic {
		t.Errorf("call that panics: got %v, want an error with code %v", err, CodePanic)
	}
}

// TestTimeSliceExpires checks time slices, the contexts that interrupt a wait to poll the caller.
// A slice begins with the first call of Err or Done. Before that, stop returns true: the slice can
// be used again.
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
