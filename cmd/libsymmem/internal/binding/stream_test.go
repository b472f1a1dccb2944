package binding

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
)

// blockStream queues work on a stream. The work ends when unblock is called.
func blockStream(t *testing.T, r *rank, handle uintptr) (unblock func()) {
	t.Helper()
	s, err := r.findStream(handle)
	if err != nil {
		t.Fatal(err)
	}

	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}

	return func() { close(gate) }
}

// ForgetStream waits for the stream's work, which may depend on other streams.
func TestForgetDoesNotBlockOtherStreams(t *testing.T) {
	const streamHandle = 1 // arbitrary
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	s, err := r.findStream(streamHandle)
	if err != nil {
		t.Fatal(err)
	}

	unblock := blockStream(t, r, streamHandle)
	forgotten := make(chan error)
	go func() { forgotten <- l.ForgetStream(streamHandle) }()
	hasForgetBegun := func() bool {
		err := s.Host(func() {}) // a stream refuses work once ForgetStream has begun
		return errors.Is(err, symmem.ErrClosed)
	}
	for !hasForgetBegun() {
		runtime.Gosched()
	}

	if r.streams.mu.TryRLock() {
		r.streams.mu.RUnlock()
	} else {
		t.Error("ForgetStream holds the lock of the table of streams while it waits")
	}

	unblock()
	if err := <-forgotten; err != nil {
		t.Errorf("ForgetStream = %v, want nil", err)
	}
}

// An event is done when the work before it in its stream is done.
func TestEventsFollowStreamOrder(t *testing.T) {
	const firstStream, secondStream = 1, 2
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	unblock := blockStream(t, r, firstStream)
	first, err := l.RecordEvent(firstStream)
	if err != nil {
		t.Fatal(err)
	}

	if err := l.StreamWait(secondStream, first); err != nil {
		t.Fatal(err)
	}

	second, err := l.RecordEvent(secondStream)
	if err != nil {
		t.Fatal(err)
	}

	if l.IsEventDone(first) {
		t.Error("IsEventDone(first) = true while the first stream is blocked, want false")
	}

	if l.IsEventDone(second) {
		t.Error("IsEventDone(second) = true while it waits for the first event, want false")
	}

	if err := l.CloseEvent(first); err != nil {
		t.Errorf("CloseEvent(first) = %v, want nil", err)
	}

	if l.IsEventDone(second) {
		t.Error("IsEventDone(second) = true after the first event was closed, want that it still waits")
	}

	unblock()
	if err := l.WaitForEvent(second); err != nil {
		t.Errorf("WaitForEvent(second) = %v, want nil", err)
	}

	if !l.IsEventDone(second) {
		t.Error("IsEventDone(second) = false after WaitForEvent, want true")
	}
}

// IsEventDone cannot return an error, so it returns true for an invalid handle.
func TestInvalidEventHandlesAreRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	closed, err := l.RecordEvent(defaultStream)
	if err != nil {
		t.Fatal(err)
	}

	if err := l.CloseEvent(closed); err != nil {
		t.Fatal(err)
	}

	notYetUsed := closed + 1000 // handles are given out in ascending order
	for _, row := range []struct {
		name   string
		handle uint64
		want   Code
	}{
		{"closed event", closed, CodeClosed},
		{"unknown event", notYetUsed, CodeInvalid},
		{"handle 0", 0, CodeInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !l.IsEventDone(row.handle) {
				t.Error("IsEventDone = false, want true")
			}

			if err := l.WaitForEvent(row.handle); CodeOf(err) != row.want {
				t.Errorf("WaitForEvent = %v, want an error with code %v", err, row.want)
			}

			if err := l.CloseEvent(row.handle); CodeOf(err) != row.want {
				t.Errorf("CloseEvent = %v, want an error with code %v", err, row.want)
			}

			if err := l.StreamWait(defaultStream, row.handle); CodeOf(err) != row.want {
				t.Errorf("StreamWait = %v, want an error with code %v", err, row.want)
			}
		})
	}
}

func TestRecordEventBeforeOpenFails(t *testing.T) {
	l := New(&Counters{}, func(text string) { t.Error(text) })
	if _, err := l.RecordEvent(defaultStream); CodeOf(err) != CodeNotOpen {
		t.Errorf("RecordEvent before Open: got %v, want an error with code %v", err, CodeNotOpen)
	}
}
