package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// These tests abort the group of two ranks, 0 and 1, around a Recv of rank 0. Rank 1 never sends a
// message. An abort without a cause is reported as driver.ErrAborted. After it, the group's
// teardown stops the waiting kernels and then closes the channel stages.kernelsEnded.

// recvBytes is the size of the messages that rank 0 wants to receive.
const recvBytes = 8

// recvOnRank0 launches a Recv on rank 0.
func (p *pairOfRanks) recvOnRank0() error {
	buffer := p[0].regions[0].segment.Address()
	return p.message(0, driver.Recv, buffer, recvBytes, noDigest)
}

// lockDescriptors locks the pool of message descriptors of c's device. A Recv takes a descriptor
// from the pool, so that it blocks until unlock is called.
func lockDescriptors(c *communicator) (unlock func()) {
	isLocked := make(chan struct{})
	mustUnlock := make(chan struct{})
	go func() {
		descriptors := &c.device.messages.Descriptors
		descriptors.Mu.Lock()
		defer descriptors.Mu.Unlock()
		close(isLocked)
		<-mustUnlock
	}()
	<-isLocked
	return func() { close(mustUnlock) }
}

// TestRecvQueuedDuringTeardownEnds blocks a Recv just before it is queued, and lets it continue
// after the teardown has stopped the group's kernels, or after a while. The call or Synchronize
// must return ErrAborted, and a further Synchronize nothing.
func TestRecvQueuedDuringTeardownEnds(t *testing.T) {
	p := openPair(t, 20*time.Second)
	c := p[0].group.(*communicator)
	unlock := lockDescriptors(c)
	queued := make(chan error, 1)
	go func() { queued <- p.recvOnRank0() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	isInRecv := func() bool {
		isFree := c.mu.TryLock() // the Recv holds c.mu while it is blocked
		if isFree {
			c.mu.Unlock()
		}

		return !isFree
	}
	if err := gpu.Poll(ctx, isInRecv); err != nil {
		t.Fatal(err)
	}

	c.Abort(nil)
	select {
	case <-c.stages.kernelsEnded:
	case <-time.After(gpu.KernelEndTimeout / 2):
	}

	unlock()
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

// TestRefusedMessageReturnsTheFaultOnce launches a second Recv after an abort. The Recv is refused
// and returns the abort, so that Synchronize must not return it again.
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
