package host

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
)

// launchRecv queues a Recv on a new stream and records an event after it.
func (d *rankPair) launchRecv(rank int, dst []byte) (*stream, *event) {
	d.t.Helper()
	plan, err := driver.Prepare(d.groups[rank], driver.Call{
		Operation: driver.Recv, DataType: driver.Uint8, Count: int64(len(dst)), Root: 1 - rank,
		Recv: uintptr(unsafe.Pointer(&dst[0])), Keep: dst,
	})
	failIfErr(d.t, err)
	s, err := d.devices[rank].NewStream()
	failIfErr(d.t, err)
	failIfErr(d.t, d.groups[rank].Launch(s, plan))
	e := &event{}
	failIfErr(d.t, s.Record(e))
	return s.(*stream), e
}

// TestRecvEndsWithoutWaiter queues two Recvs without a call that waits for them. The event after
// the first must become done, and the work after the second must run.
func TestRecvEndsWithoutWaiter(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	got, later := make([]byte, 1000), make([]byte, 1000)
	_, e := d.launchRecv(0, got)
	s, _ := d.launchRecv(0, later)
	hasRun := make(chan struct{})
	failIfErr(t, s.Host(func() { close(hasRun) }))
	want := bytes.Repeat([]byte{7}, len(got))
	for range 2 {
		failIfErr(t, d.send(1, driver.Call{Count: int64(len(want))}, want))
	}
	for deadline := time.Now().Add(processTimeout); !e.Done(); {
		if time.Now().After(deadline) {
			t.Fatal("the event is not done")
		}
		runtime.Gosched()
	}
	<-hasRun
	if !bytes.Equal(got, want) || !bytes.Equal(later, want) {
		t.Errorf("the messages begin with %v and %v, want only bytes of 7", got[:3], later[:3])
	}
}

// TestSeveralCallersWaitForRecv waits for the same Recv in several ways at once. One of the
// callers, or a worker, receives the message on its thread. All waits must end after that.
func TestSeveralCallersWaitForRecv(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	for round := range 200 {
		size := 1 + round*2000%(2*pipeFrames*frameBytes) // up to twice the size of the pipe
		sent, got := bytes.Repeat([]byte{byte(round)}, size), make([]byte, size)
		s, e := d.launchRecv(0, got)
		other, err := d.devices[0].NewStream()
		failIfErr(t, err)
		waits := []func() error{
			func() error { return e.Synchronize(d.ctx) },
			func() error { return e.Synchronize(d.ctx) },
			func() error { return s.Synchronize(d.ctx) },
			func() error {
				if err := other.Wait(e); err != nil {
					return err
				}
				return other.Synchronize(d.ctx)
			},
		}
		errs := make(chan error)
		for _, wait := range waits {
			go func() {
				err := wait()
				if err == nil && !bytes.Equal(got, sent) {
					err = fmt.Errorf("round %d: a wait ended before the message arrived", round)
				}
				errs <- err
			}()
		}
		failIfErr(t, d.send(1, driver.Call{Count: int64(size)}, sent))
		for range waits {
			failIfErr(t, <-errs)
		}
	}
}

// TestRecvFailsWhileNobodyWaits aborts a group while a Recv waits for a message.
func TestRecvFailsWhileNobodyWaits(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	_, e := d.launchRecv(0, make([]byte, 1000))
	cause := d.groups[0].(*communicator).Fail(driver.ErrAborted)
	if cause == nil {
		t.Error("Fail = nil, want the fault")
	}
	if err := e.Synchronize(d.ctx); err == nil {
		t.Errorf("Synchronize = nil after the fault %v, want an error", cause)
	}
}

// TestFailedRecvIsDetached aborts a group between two attempts to receive a message. The pipe must
// not write to the buffer afterwards, because its owner may use it again.
func TestFailedRecvIsDetached(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	c := d.groups[0].(*communicator)
	dst := make([]byte, 1000)
	p, err := driver.Prepare(c, driver.Call{
		Operation: driver.Recv, DataType: driver.Uint8, Count: int64(len(dst)), Root: 1,
		Recv: uintptr(unsafe.Pointer(&dst[0])), Keep: dst,
	})
	failIfErr(t, err)
	end, err := p.(*plan).newMessageWork()
	failIfErr(t, err)
	r := end.(*recvCall)
	const callerWaits = false
	if done, err := r.transferNow(callerWaits); done || err != nil || !r.canBeLate() {
		t.Fatalf("transferNow = %v, %v; want a Recv that can be late", done, err)
	}
	_ = c.Fail(driver.ErrAborted)
	if done, err := r.receiveForWaiter(d.ctx); done || err == nil {
		t.Errorf("receiveForWaiter = %v, %v; want the fault", done, err)
	}
	pipe := &c.messages.recvPipes[1]
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	for key, msg := range pipe.incoming {
		t.Errorf("message %v still has the receiver %p", key, msg.receiver)
	}
}
