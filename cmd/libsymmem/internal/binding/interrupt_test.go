package binding

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem"
)

// asked sets a poll that ends the wait when it is asked for the nth time, and counts.
func asked(l *Library, nth int) *int {
	count := new(int)
	l.SetPoll(func() bool { *count++; return *count >= nth }, func() bool { return false })
	return count
}

func TestAWaitForAStreamIsInterruptedAndMayBeMadeAgain(t *testing.T) {
	l, _ := alone(t, host)
	r, err := l.current()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.stream(0)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	count := asked(l, 3)
	if err := l.Synchronize(0); CodeOf(err) != Interrupted || *count != 3 {
		t.Errorf("asked %d times: %v", *count, err)
	}
	close(gate)
	asked(l, 1000)
	if err := l.Synchronize(0); err != nil {
		t.Error(err)
	}
}

func TestAWaitThatEndsAtOnceAsksNobody(t *testing.T) {
	l, _ := alone(t, host)
	count := asked(l, 1)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		l.Synchronize(0), l.Do(world, &Call{Operation: 8, Type: 7}), l.Check(world),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if *count != 0 {
		t.Errorf("asked %d times", *count)
	}
}

func TestACallIsLeftThatDoesNotEnd(t *testing.T) {
	l := New(&Words{}, func(text string) { t.Error(text) })
	asked(l, 1)
	over := make(chan struct{})
	for name, call := range map[string]func(context.Context) error{
		"ends with its context": func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		},
		"goes on": func(context.Context) error { <-over; return nil },
	} {
		if err := l.apart("waiting", call); !errors.Is(err, symmem.ErrInterrupted) {
			t.Errorf("a call that %s: %v", name, err)
		}
	}
	close(over)
	err := l.apart("working", func(context.Context) error { panic("a mistake") })
	if CodeOf(err) != Panic {
		t.Errorf("a panic apart: %v", err)
	}
}

func TestATickEnds(t *testing.T) {
	slow := newTick(time.Hour)
	if slow.Err() != nil {
		t.Error("it has ended before its time")
	}
	if slow.unused() {
		t.Error("nobody has asked for its end")
	}
	if !newTick(time.Hour).unused() {
		t.Error("somebody has asked for its end")
	}
	quick := newTick(time.Millisecond)
	select {
	case <-quick.Done():
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if !errors.Is(context.Cause(quick), errTick) {
		t.Errorf("its cause is %v", context.Cause(quick))
	}
}
