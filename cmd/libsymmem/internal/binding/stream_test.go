package binding

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
)

// TestForgetDoesNotBlockOtherStreams forgets a stream whose work has not ended. Other streams must
// stay usable meanwhile, because the work may depend on them.
func TestForgetDoesNotBlockOtherStreams(t *testing.T) {
	const handle = 1
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.findStream(handle)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	forgotten := make(chan error)
	go func() { forgotten <- l.ForgetStream(handle) }()
	for !errors.Is(s.Host(func() {}), symmem.ErrClosed) { // until ForgetStream has begun
		runtime.Gosched()
	}
	if !r.streams.mu.TryRLock() {
		t.Error("ForgetStream holds the stream table's lock while it waits; want it released")
	} else {
		r.streams.mu.RUnlock()
	}
	close(gate)
	if err := <-forgotten; err != nil {
		t.Error(err)
	}
}

// blockStream queues work on a stream that does not end until unblock is called.
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

// TestEventsFollowStreamOrder makes a second stream wait for an event of a first stream.
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
	for name, e := range map[string]uint64{"first": first, "second": second} {
		if l.IsEventDone(e) {
			t.Errorf("IsEventDone(%s) = true before the event's work is done, want false", name)
		}
	}
	// Closing an event must not release streams that wait for it.
	if err := l.CloseEvent(first); err != nil {
		t.Error(err)
	}
	if l.IsEventDone(second) {
		t.Error("IsEventDone(second) = true after the first event was closed, want false")
	}
	unblock()
	if err := l.WaitForEvent(second); err != nil {
		t.Error(err)
	}
	if !l.IsEventDone(second) {
		t.Error("IsEventDone(second) = false after WaitForEvent, want true")
	}
}

func TestInvalidEventHandlesAreRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	e, err := l.RecordEvent(defaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CloseEvent(e); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		handle uint64
		want   Code
	}{
		{"closed event", e, CodeClosed},
		{"unknown event", e + 1000, CodeInvalid},
		{"handle 0", 0, CodeInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !l.IsEventDone(row.handle) {
				t.Error("IsEventDone = false, want true")
			}
			for name, err := range map[string]error{
				"WaitForEvent": l.WaitForEvent(row.handle),
				"CloseEvent":   l.CloseEvent(row.handle),
				"StreamWait":   l.StreamWait(defaultStream, row.handle),
			} {
				if CodeOf(err) != row.want {
					t.Errorf("%s = %v, want %v", name, err, row.want)
				}
			}
		})
	}
	unopened := New(&Counters{}, func(text string) { t.Error(text) })
	if _, err := unopened.RecordEvent(defaultStream); CodeOf(err) != CodeNotOpen {
		t.Errorf("RecordEvent before Open: got %v, want %v", err, ErrNotOpen)
	}
}
