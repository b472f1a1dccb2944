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

// A late Recv is launched before its message is sent. It is completed by a caller that waits for
// the stream or an event or, without such a caller, by a worker goroutine.

// launchRecv queues a Recv from the other rank on a new stream, and records an event after it.
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

func TestRecvEndsWithoutWaiter(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	const size = 1000
	message1 := make([]byte, size)
	message2 := make([]byte, size)
	_, e := d.launchRecv(0, message1)
	s, _ := d.launchRecv(0, message2)
	hasRun := make(chan struct{}) // closed by the work after the second Recv
	failIfErr(t, s.Host(func() { close(hasRun) }))
	want := bytes.Repeat([]byte{7}, size)
	for range 2 {
		failIfErr(t, d.send(1, driver.Call{Count: size}, want))
	}

	for deadline := time.Now().Add(processTimeout); !e.Done(); {
		if time.Now().After(deadline) {
			t.Fatal("the event is not done")
		}

		runtime.Gosched()
	}

	<-hasRun
	for i, got := range [][]byte{message1, message2} {
		if !bytes.Equal(got, want) {
			t.Errorf("message %d begins with %v, want only bytes of 7", i+1, got[:3])
		}
	}
}

// Every caller waits until the message has arrived, whichever of them receives it.
func TestSeveralCallersWaitForRecv(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	const rounds = 200 // many, because timing decides which caller receives
	const growthPerRound = 2000
	const pipeBytes = pipeFrames * frameBytes
	const maxSize = 2 * pipeBytes // covers messages that do not fit into the pipe
	for round := range rounds {
		size := 1 + round*growthPerRound%maxSize
		sent := bytes.Repeat([]byte{byte(round)}, size)
		got := make([]byte, size)
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

func TestRecvFailsWhileNobodyWaits(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	_, e := d.launchRecv(0, make([]byte, 1000))
	fault := d.groups[0].(*communicator).Fail(driver.ErrAborted)
	if fault == nil {
		t.Error("Fail = nil, want the fault of the group")
	}

	if err := e.Synchronize(d.ctx); err == nil {
		t.Errorf("Synchronize = nil after the fault %v, want an error", fault)
	}
}

// A failed Recv removes its buffer from the pipe, because the caller may reuse it.
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
