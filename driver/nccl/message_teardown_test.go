package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// In these tests, rank 0 launches a Recv and aborts the group. Rank 1 sends no message. Rank 0 gets
// driver.ErrAborted exactly once.

const recvBytes = 8

func (p *pairOfRanks) recvOnRank0() error {
	buffer := p[0].regions[0].segment.Address()
	return p.message(0, driver.Recv, buffer, recvBytes, noDigest)
}

// blockRecvs makes each Recv wait for a lock until unblock is called.
func blockRecvs(c *communicator) (unblock func()) {
	isLocked := make(chan struct{})
	mustUnlock := make(chan struct{})
	go func() {
		descriptors := &c.device.messages.Descriptors // each Recv takes one
		descriptors.Mu.Lock()
		defer descriptors.Mu.Unlock()
		close(isLocked)
		<-mustUnlock
	}()
	<-isLocked
	return func() { close(mustUnlock) }
}

// A Recv ends even if it is queued after the teardown of the group has stopped the kernels.
func TestRecvQueuedDuringTeardownEnds(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c := p[0].group.(*communicator)
	unblock := blockRecvs(c)
	queued := make(chan error, 1)
	go func() { queued <- p.recvOnRank0() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	isRecvBlocked := func() bool { // a blocked Recv holds c.mu
		if c.mu.TryLock() {
			c.mu.Unlock()
			return false
		}

		return true
	}
	if err := gpu.Poll(ctx, isRecvBlocked); err != nil {
		t.Fatalf("waiting for the Recv to hold the group's lock: %v", err)
	}

	c.Abort(nil)
	select {
	case <-c.stages.kernelsEnded:
	case <-time.After(gpu.KernelEndTimeout / 2): // the teardown may be waiting for the Recv
	}

	unblock()
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

	_ = p[1].stream.Synchronize(ctx) // may return the fault
	p.closeAll(t)
}

func TestRefusedMessageReturnsTheFaultOnce(t *testing.T) {
	p := openPair(t, 20*time.Second)
	if err := p.recvOnRank0(); err != nil {
		t.Fatal(err)
	}

	p[0].group.(*communicator).Abort(nil)
	if err := p.recvOnRank0(); !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Recv after the abort = %v, want ErrAborted", err)
	}

	if err := p[0].stream.Synchronize(t.Context()); err != nil {
		t.Errorf("Synchronize = %v after the refused Recv returned the fault, want nil", err)
	}

	_ = p[1].stream.Synchronize(t.Context()) // may return the fault
	p.closeAll(t)
}
