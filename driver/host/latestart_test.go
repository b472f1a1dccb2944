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

// A Recv runs late if the goroutine that launches it does not wait for its message. Then either a
// caller that waits for the stream, or a worker goroutine, receives the message when it arrives.

// launchRecv queues a Recv from the other rank on a new stream and records an event after it. It
// fails the test if it cannot.
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
	s, _ := d.launchRecv(0, later) // on another stream
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
	for i, message := range [][]byte{got, later} {
		if !bytes.Equal(message, want) {
			t.Errorf("message %d begins with %v, want only bytes of 7", i, message[:3])
		}
	}
}

// TestSeveralCallersWaitForRecv waits for the same Recv in several ways at once. One of the
// callers, or a worker, receives the message on its thread. All waits must end after that.
func TestSeveralCallersWaitForRecv(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	// Which caller receives the message depends on the timing. Sizes grow by 2000 bytes in each
	// round. If a message is larger than the pipe, the sender needs a receiver before it can finish.
	const rounds = 200
	const maxSize = 2 * pipeFrames * frameBytes // twice the size of the pipe
	for round := range rounds {
		size := 1 + round*2000%maxSize
		sent := bytes.Repeat([]byte{byte(round)}, size)
		got := make([]byte, size)
		s, e := d.launchRecv(0, got)
		other, err := d.devices[0].NewStream()
		failIfErr(t, err)
		waits := []func() error{
			func() error { return e.Synchronize(d.ctx) },
			func() error { return e.Synchronize(d.ctx) }, // several callers use the same event
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

// TestRecvFailsWhileNobodyWaits aborts a group while a Recv waits for a message, but no caller
// waits for the Recv. A later wait must return an error.
func TestRecvFailsWhileNobodyWaits(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	_, e := d.launchRecv(0, make([]byte, 1000))
	cause := d.groups[0].(*communicator).Fail(driver.ErrAborted)
	if cause == nil {
		t.Error("Fail = nil, want the fault of the group")
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
	work, err := p.(*plan).newMessageWork()
	failIfErr(t, err)
	r := work.(*recvCall)
	const callerWaits = false
	if done, err := r.transferNow(callerWaits); done || err != nil {
		t.Fatalf("transferNow = %v, %v; want false and no error, because no message was sent", done,
			err)
	}

	if !r.canBeLate() {
		t.Fatal("canBeLate = false, want true for a message that is smaller than the pipe")
	}

	pipe := &c.messages.recvPipes[1]
	pipe.mu.Lock()
	if n := len(pipe.incoming); n != 1 { // messages that the pipe may write to buffers
		t.Errorf("the pipe has %d messages before the failure, want 1", n)
	}

	pipe.mu.Unlock()
	_ = c.Fail(driver.ErrAborted) // returns the fault
	if done, err := r.receiveForWaiter(d.ctx); done || err == nil {
		t.Errorf("receiveForWaiter = %v, %v; want false and the fault", done, err)
	}

	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	for key, msg := range pipe.incoming {
		t.Errorf("the pipe still has message %v with receiver %p, want none", key, msg.receiver)
	}
}
