package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/dl"
)

// TestStreamIsAbandonedBeforeItsFaultIsReturned checks that work which callers queue after they got
// the fault is not abandoned together with the kernel that does not end.
func TestStreamIsAbandonedBeforeItsFaultIsReturned(t *testing.T) {
	if !apart(t, "") {
		return
	}
	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}
	p := firstSumWithin(t, time.Second)
	_, err := p.sum(t.Context(), 0, driver.PathWindow, 1)
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Fatalf("got %v, want a TimeoutError", err)
	}
	if !p[0].stream.(*stream.Stream).Idle() {
		t.Error("the fault was returned, but the stream still has the kernel")
	}
}

// TestDeviceIsClosedAlthoughItsWorkDoesNotEnd closes a device with unfinished work, under which no
// memory can be freed.
func TestDeviceIsClosedAlthoughItsWorkDoesNotEnd(t *testing.T) {
	if !apart(t, "") {
		return
	}
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan struct{})
	defer close(ends)
	if err := s.Host(func() { <-ends }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing the stream: got %v, want DeadlineExceeded", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("closing the device: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("closing the device does not end")
	}
}
