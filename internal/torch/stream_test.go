package torch

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
)

// TestAStreamIsForgottenWithoutHoldingUpOthers forgets a stream whose work is not done yet: what
// that work waits for may be on other streams, which are looked up meanwhile.
func TestAStreamIsForgottenWithoutHoldingUpOthers(t *testing.T) {
	l, _ := alone(t, host)
	r, err := l.current()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.stream(1)
	if err != nil {
		t.Fatal(err)
	}
	gate, forgotten := make(chan struct{}), make(chan error)
	if err := s.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	go func() { forgotten <- l.Forget(1) }()
	for !errors.Is(s.Host(func() {}), symmem.ErrClosed) {
		runtime.Gosched()
	}
	if !r.mu.TryRLock() {
		t.Error("no stream can be looked up while one is forgotten")
	} else {
		r.mu.RUnlock()
	}
	close(gate)
	if err := <-forgotten; err != nil {
		t.Error(err)
	}
}
