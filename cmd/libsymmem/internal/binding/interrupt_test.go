package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// interruptAtPoll sets a poll function that interrupts the wait on its nth call, and returns a
// counter of the calls.
func interruptAtPoll(l *Library, nth int) *int {
	count := new(int)
	l.SetPoll(func() bool { *count++; return *count >= nth }, func() bool { return false })
	return count
}

func TestInterruptedSynchronizeCanBeRepeated(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.findStream(0)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	count := interruptAtPoll(l, 3)
	if err := l.Synchronize(0); CodeOf(err) != CodeInterrupted || *count != 3 {
		t.Errorf("interrupted Synchronize = %v after %d polls, want %v after 3", err, *count,
			CodeInterrupted)
	}
	close(gate)
	interruptAtPoll(l, 1000)
	if err := l.Synchronize(0); err != nil {
		t.Error(err)
	}
}

func TestCallsThatReturnImmediatelyDoNotPoll(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	count := interruptAtPoll(l, 1)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		l.Synchronize(0), l.Do(world, &Arguments{Operation: 8, Type: 7}), l.Check(world),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if *count != 0 {
		t.Errorf("polled %d times, want 0", *count)
	}
}

func TestInterruptedCallThatDoesNotReturnIsAbandoned(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	interruptAtPoll(l, 1)
	release := make(chan struct{})
	for name, call := range map[string]func(context.Context) error{
		"returns when its context is canceled": func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
		"ignores its context": func(context.Context) error { <-release; return nil },
	} {
		if err := l.runInterruptible("waiting", call); !errors.Is(err, symmem.ErrInterrupted) {
			t.Errorf("call that %s: got %v, want %v", name, err, symmem.ErrInterrupted)
		}
	}
	close(release)
	err := l.runInterruptible("working", func(context.Context) error { panic("a mistake") })
	if CodeOf(err) != CodePanic {
		t.Errorf("call that panics: got %v, want %v", err, ErrPanic)
	}
}

func TestTimeSliceExpires(t *testing.T) {
	slow := newTimeSlice(time.Hour)
	if slow.Err() != nil {
		t.Error("the time slice expired early")
	}
	if slow.stop() {
		t.Error("stop() = true after Err, want false")
	}
	if !newTimeSlice(time.Hour).stop() {
		t.Error("stop() = false for a new time slice, want true")
	}
	quick := newTimeSlice(time.Millisecond)
	select {
	case <-quick.Done():
	case <-time.After(time.Minute):
		t.Fatal("the time slice did not expire within a minute")
	}
	if !errors.Is(context.Cause(quick), errTimeSlice) {
		t.Errorf("cause = %v, want %v", context.Cause(quick), errTimeSlice)
	}
}
