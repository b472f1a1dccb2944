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

// TestStreamIsAbandonedBeforeItsFaultIsReturned checks that a stream's stuck kernel is abandoned
// before the fault is returned. If it were abandoned later, work that the caller queues after
// receiving the fault could be lost.
func TestStreamIsAbandonedBeforeItsFaultIsReturned(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}

	p := openAndSumWithTimeout(t, time.Second)
	_, err := p.sum(t.Context(), 0, driver.PathWindow, 1)
	var timeoutErr *driver.TimeoutError
	if !errors.As(err, &timeoutErr) {
		t.Fatalf("sum = %v, want a TimeoutError", err)
	}

	if !p[0].stream.(*stream.Stream).Idle() {
		t.Error("the fault was returned before the stuck kernel was abandoned")
	}
}

// TestDeviceIsClosedAlthoughItsWorkDoesNotEnd closes a device that has unfinished work. Close must
// return, although it cannot free memory that the work may use.
func TestDeviceIsClosedAlthoughItsWorkDoesNotEnd(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
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

	unblock := make(chan struct{})
	defer close(unblock)
	if err := s.Host(func() { <-unblock }); err != nil {
		t.Fatal(err)
	}

	if err := s.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stream: Close = %v, want DeadlineExceeded", err)
	}

	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("device: Close = %v, want nil", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("device: Close did not return within 10 seconds")
	}
}
