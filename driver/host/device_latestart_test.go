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

// These tests launch a Recv before its message is sent. The first caller that waits for the stream
// or an event receives the message. Without such a caller, a worker goroutine receives it.

// messageBytes is an arbitrary size below that of a pipe.
const messageBytes = 1000

// prepareRecv returns the plan of a Recv on rank 0.
func (pair *rankPair) prepareRecv(dst []byte) *plan {
	pair.t.Helper()
	const sender = 1
	p, err := driver.Prepare(pair.groups[0], driver.Call{
		Operation: driver.Recv, DataType: driver.Uint8, Count: int64(len(dst)), Root: sender,
		Recv: uintptr(unsafe.Pointer(&dst[0])), Keep: dst,
	})
	failIfErr(pair.t, err)
	return p.(*plan)
}

// launchRecv queues a Recv of rank 0 on a new stream, and records an event after it.
func (pair *rankPair) launchRecv(dst []byte) (*stream, *event) {
	pair.t.Helper()
	s, err := pair.devices[0].NewStream()
	failIfErr(pair.t, err)
	failIfErr(pair.t, pair.groups[0].Launch(s, pair.prepareRecv(dst)))
	e := &event{}
	failIfErr(pair.t, s.Record(e))
	return s.(*stream), e
}

func TestRecvEndsWithoutWaiter(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	message1 := make([]byte, messageBytes)
	message2 := make([]byte, messageBytes)
	_, recv1Event := pair.launchRecv(message1)
	stream2, _ := pair.launchRecv(message2)
	hasRun := make(chan struct{}) // closed by the work after the second Recv
	failIfErr(t, stream2.Host(func() { close(hasRun) }))
	const sentByte = 7
	want := bytes.Repeat([]byte{sentByte}, messageBytes)
	for range 2 {
		failIfErr(t, pair.send(1, driver.Call{Count: messageBytes}, want))
	}

	deadline := time.Now().Add(processTimeout)
	for !recv1Event.Done() {
		if time.Now().After(deadline) {
			t.Fatal("the event is not done")
		}

		runtime.Gosched()
	}

	<-hasRun
	for i, got := range [][]byte{message1, message2} {
		if !bytes.Equal(got, want) {
			t.Errorf("message %d begins with %v, want only bytes of %d", i+1, got[:3], sentByte)
		}
	}
}

// No wait ends before the message has arrived, even if another caller receives the message.
func TestSeveralCallersWaitForRecv(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const rounds = 200 // many, because timing decides which caller receives
	const growthPerRound = 2000
	const pipeBytes = pipeFrames * frameBytes
	const maxSize = 2 * pipeBytes // does not fit into the pipe
	for round := range rounds {
		size := 1 + (round*growthPerRound)%maxSize
		sent := bytes.Repeat([]byte{byte(round)}, size)
		got := make([]byte, size)
		s, e := pair.launchRecv(got)
		other, err := pair.devices[0].NewStream()
		failIfErr(t, err)
		waits := []func() error{
			func() error { return e.Synchronize(pair.ctx) },
			func() error { return e.Synchronize(pair.ctx) },
			func() error { return s.Synchronize(pair.ctx) },
			func() error {
				if err := other.Wait(e); err != nil {
					return err
				}

				return other.Synchronize(pair.ctx)
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

		failIfErr(t, pair.send(1, driver.Call{Count: int64(size)}, sent))
		for range waits {
			failIfErr(t, <-errs)
		}
	}
}

func TestRecvFailsWhileNobodyWaits(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	_, e := pair.launchRecv(make([]byte, messageBytes))
	fault := pair.groups[0].(*communicator).Fail(driver.ErrAborted)
	if fault == nil {
		t.Error("Fail = nil, want the fault of the group")
	}

	if err := e.Synchronize(pair.ctx); err == nil {
		t.Errorf("Synchronize = nil after the fault %v, want an error", fault)
	}
}

// A failed Recv removes its buffer from the pipe, because the caller may reuse the buffer.
func TestFailedRecvIsDetached(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	c := pair.groups[0].(*communicator)
	work, err := pair.prepareRecv(make([]byte, messageBytes)).newMessageWork()
	failIfErr(t, err)
	r := work.(*recvCall)
	const callerWaits = false
	if done, err := r.transferNow(callerWaits); done || err != nil {
		t.Fatalf("transferNow = %v, %v without a Send; want false, <nil>", done, err)
	}

	if !r.canBeLate() {
		t.Fatal("canBeLate = false, want true for a message that is smaller than the pipe")
	}

	pipe := &c.messages.recvPipes[1]
	pipe.mu.Lock()
	if n := len(pipe.incoming); n != 1 {
		t.Errorf("the pipe has %d messages before the failure, want 1", n)
	}

	pipe.mu.Unlock()
	_ = c.Fail(driver.ErrAborted) // the test does not need the fault
	if done, err := r.receiveForWaiter(pair.ctx); done || err == nil {
		t.Errorf("receiveForWaiter = %v, %v; want false and the fault", done, err)
	}

	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	for key, msg := range pipe.incoming {
		t.Errorf("the pipe still has message %v with receiver %p, want none", key, msg.receiver)
	}
}
