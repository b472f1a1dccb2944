package binding

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
)

// TestForgetDoesNotBlockOtherStreams forgets a stream with unfinished work. Other streams must stay
// usable meanwhile, because that work may depend on them.
func TestForgetDoesNotBlockOtherStreams(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.findStream(1)
	if err != nil {
		t.Fatal(err)
	}
	gate, forgotten := make(chan struct{}), make(chan error)
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	go func() { forgotten <- l.ForgetStream(1) }()
	for !errors.Is(s.Host(func() {}), symmem.ErrClosed) {
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

// blockStream keeps a stream busy until unblock is called.
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

func TestEventsFollowStreamOrder(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	r, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	unblock := blockStream(t, r, 1)
	first, err := l.RecordEvent(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StreamWait(2, first); err != nil {
		t.Fatal(err)
	}
	second, err := l.RecordEvent(2)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []uint64{first, second} {
		if l.IsEventDone(e) {
			t.Errorf("IsEventDone(%d) = true before the event's work is done, want false", e)
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
	e, err := l.RecordEvent(0)
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
			for _, err := range []error{
				l.WaitForEvent(row.handle), l.CloseEvent(row.handle), l.StreamWait(0, row.handle),
			} {
				if CodeOf(err) != row.want {
					t.Errorf("got %v, want %v", err, row.want)
				}
			}
		})
	}
	closed := New(&Counters{}, func(text string) { t.Error(text) })
	if _, err := closed.RecordEvent(0); CodeOf(err) != CodeNotOpen {
		t.Errorf("RecordEvent before Open: got %v, want %v", err, ErrNotOpen)
	}
}
