package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// interruptAtPoll sets a poll function that requests an interrupt from its nth call on, except in
// collectives. It returns a counter of the calls.
func interruptAtPoll(l *Library, nth int) *int {
	count := new(int)
	pollOnThread := func() bool {
		*count++
		return *count >= nth
	}
	pollInCollective := func() bool { return false }
	l.SetPoll(pollOnThread, pollInCollective)
	return count
}

func TestInterruptedSynchronizeCanBeRepeated(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.findStream(defaultStream)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	count := interruptAtPoll(l, 3)
	err = l.Synchronize(defaultStream)
	if CodeOf(err) != CodeInterrupted || *count != 3 {
		t.Errorf("interrupted Synchronize = %v after %d polls, want %v after 3", err, *count,
			CodeInterrupted)
	}
	close(gate)
	interruptAtPoll(l, 1000) // more polls than the next call makes
	if err := l.Synchronize(defaultStream); err != nil {
		t.Errorf("second Synchronize = %v, want nil", err)
	}
}

func TestCallsThatReturnImmediatelyDoNotPoll(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	count := interruptAtPoll(l, 1)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	const barrier, uint8Type = int(symmem.OpBarrier), 7 // SYMMEM_BARRIER and SYMMEM_UINT8
	for name, err := range map[string]error{
		"Synchronize": l.Synchronize(defaultStream),
		"Barrier":     l.Do(world, &Arguments{Operation: barrier, Type: uint8Type}),
		"Check":       l.Check(world),
	} {
		if err != nil {
			t.Errorf("%s = %v, want nil", name, err)
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
	if slow.Err() != nil { // the first call of Err begins the time slice
		t.Error("the time slice expired early")
	}
	if slow.stop() {
		t.Error("stop() = true for a time slice that has begun, want false")
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
