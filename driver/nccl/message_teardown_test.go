package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// TestRecvQueuedDuringTeardownEnds blocks a Recv just before it is queued. It lets the Recv
// continue after the group's teardown has closed stages.kernelsEnded.
func TestRecvQueuedDuringTeardownEnds(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c := p[0].group.(*communicator)
	locked, unlock := make(chan struct{}), make(chan struct{})
	go func() {
		descriptors := &c.device.messages.Descriptors
		descriptors.Mu.Lock()
		defer descriptors.Mu.Unlock()
		close(locked)
		<-unlock
	}()
	<-locked
	queued := make(chan error, 1)
	go func() { queued <- p.message(0, driver.Recv, p[0].regions[0].segment.Address(), 8, 0) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	isInRecv := func() bool {
		if !c.mu.TryLock() {
			return true
		}

		c.mu.Unlock()
		return false
	}
	if err := gpu.Poll(ctx, isInRecv); err != nil {
		t.Fatal(err)
	}

	c.Abort(nil)
	select {
	case <-c.stages.kernelsEnded:
	case <-time.After(gpu.KernelEndTimeout / 2):
	}

	close(unlock)
	err := <-queued
	if err == nil {
		err = p[0].stream.Synchronize(ctx)
	}

	if !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Recv = %v, want ErrAborted", err)
	}

	if err := p[0].stream.Synchronize(ctx); err != nil {
		t.Errorf("second Synchronize = %v, want nil", err)
	}

	_ = p[1].stream.Synchronize(ctx)
	p.closeAll(t)
}

// TestRefusedMessageReturnsTheFaultOnce checks that Synchronize does not return a fault that a
// refused call has already returned.
func TestRefusedMessageReturnsTheFaultOnce(t *testing.T) {
	p := openPair(t, 20*time.Second)
	if err := p.message(0, driver.Recv, p[0].regions[0].segment.Address(), 8, 0); err != nil {
		t.Fatal(err)
	}

	p[0].group.(*communicator).Abort(nil)
	err := p.message(0, driver.Recv, p[0].regions[0].segment.Address(), 8, 0)
	if !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Recv = %v, want ErrAborted", err)
	}

	if err := p[0].stream.Synchronize(t.Context()); err != nil {
		t.Errorf("Synchronize = %v after the refused Recv returned the fault, want nil", err)
	}

	_ = p[1].stream.Synchronize(t.Context())
	p.closeAll(t)
}
