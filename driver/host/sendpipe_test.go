package host

import (
	"bytes"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
)

// TestSendsWithoutReceiverAreStored sends several messages before the receiver reads any. The
// Sends must complete, the messages must arrive unchanged although their buffer has been
// overwritten, and both ranks must then free the memory that stored the messages.
func TestSendsWithoutReceiverAreStored(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	const messages, size = 3, 5<<20 + 7
	data := make([]byte, size)
	for i := range messages {
		for j := range data {
			data[j] = byte(i + j)
		}
		failIfErr(t, d.send(0, driver.Call{Count: size}, data))
	}
	pipe := &d.groups[0].(*communicator).messages.sendPipes[1]
	backlogSent := pipe.backlogSentChannel()
	if backlogSent == nil {
		t.Fatal("the sender stores no message for the receiver")
	}
	got := make([]byte, size)
	for i := range messages {
		failIfErr(t, d.receive(1, driver.Call{Count: size}, got))
		for j := range data {
			data[j] = byte(i + j)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("message %d has the wrong contents", i)
		}
	}
	<-backlogSent
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.backlogBytes != 0 || pipe.backlog != nil {
		t.Errorf("the sender stores %d bytes in %d messages, want none", pipe.backlogBytes,
			len(pipe.backlog))
	}
	if n := len(d.groups[1].(*communicator).messages.recvPipes[0].incoming); n != 0 {
		t.Errorf("the receiver stores %d messages, want none", n)
	}
}

// TestMessageDuringCloseIsReported sends a message from rank 0 while rank 1 closes the group. A
// goroutine holds a lock that stops rank 1's Close until rank 0 has sent the message and closed
// the group, too. At least one Close must return an error.
func TestMessageDuringCloseIsReported(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	receiver := d.groups[1].(*communicator)
	locked, release := make(chan struct{}), make(chan struct{})
	receiverResult := make(chan error)
	go func() {
		receiver.Counts.Mu.Lock()
		defer receiver.Counts.Mu.Unlock()
		close(locked)
		<-release
	}()
	<-locked
	go func() { receiverResult <- receiver.Close() }()
	isClosing := func() bool {
		receiver.Mu.Lock()
		defer receiver.Mu.Unlock()
		return receiver.Closed()
	}
	for deadline := time.Now().Add(processTimeout); !isClosing(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the receiver did not begin to close")
		}
	}
	failIfErr(t, d.send(0, driver.Call{Count: 8}, make([]byte, 8)))
	senderErr := d.groups[0].Close()
	close(release)
	receiverErr := <-receiverResult
	if !errors.As(errors.Join(senderErr, receiverErr), new(*driver.MessageError)) {
		t.Errorf("Close = %v (sender), %v (receiver); want a MessageError from at least one of them",
			senderErr, receiverErr)
	}
}

func TestCloseSendsStoredMessages(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	const size = 3 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	failIfErr(t, d.send(0, driver.Call{Count: size}, data))
	closed := make(chan error)
	go func() { closed <- d.groups[0].Close() }()
	failIfErr(t, d.receive(1, driver.Call{Count: size}, got))
	failIfErr(t, <-closed)
	if !bytes.Equal(got, data) {
		t.Error("the message has the wrong contents")
	}
}

// TestSendWaitRestartsWhenReceiverReadsFrame calls waitDeadline for a pipe that stays full. The
// rows are successive calls, and a wait restarts when the number of read frames changes.
func TestSendWaitRestartsWhenReceiverReadsFrame(t *testing.T) {
	const ms = uint64(time.Millisecond)
	pipe := &sendPipe{}
	for _, c := range []struct {
		read, now     uint64 // frames that the receiver has read; time in nanoseconds
		rest, backlog int64  // bytes of the message and of other messages to be sent
		timeout       time.Duration
		want          uint64 // time in nanoseconds
	}{
		{0, 100 * ms, 0, 0, time.Minute, 101 * ms},
		{0, 500 * ms, 0, 0, time.Minute, 101 * ms}, // the receiver has read nothing more
		{0, 500 * ms, 64e6, 0, time.Minute, 164 * ms},
		{0, 500 * ms, 1 << 50, 0, time.Minute, 1100 * ms},
		{0, 500 * ms, 0, 5 * backlogUnit, time.Minute, 132 * ms},
		{1, 500 * ms, 0, 5 * backlogUnit, time.Minute, 532 * ms},
		{1, 800 * ms, 0, 1 << 50, time.Minute, 1500 * ms},
		{1, 800 * ms, 0, 1 << 50, 160 * time.Millisecond, 510 * ms},
	} {
		pipe.backlogBytes = c.backlog
		if got := pipe.waitDeadline(c.read, c.now, c.rest, c.timeout); got != c.want {
			t.Errorf("waitDeadline(%d, %d, %d, %v) = %v with a backlog of %d bytes, want %v", c.read,
				c.now, c.rest, c.timeout, time.Duration(got), c.backlog, time.Duration(c.want))
		}
	}
}

// TestThrottledSendsDoNotDelayCollective makes rank 0 send many messages before it enters a
// collective in which rank 1 waits. Each Send of the backlogged pipe waits for the receiver.
func TestThrottledSendsDoNotDelayCollective(t *testing.T) {
	const messages, size = 100, 1 << 18
	d := newRankPair(t)
	d.connect()
	pipe := &d.groups[0].(*communicator).messages.sendPipes[1]
	pipe.backlogBytes = 1 << 50 // makes Sends wait as long as possible
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	for _, err := range d.runOnBoth(func(rank int) error {
		if rank == 0 {
			for range messages {
				failIfErr(t, d.send(0, driver.Call{Count: size}, data))
			}
		}
		return d.message(rank, driver.Call{Operation: driver.Barrier})
	}) {
		failIfErr(t, err)
	}
	for range messages {
		failIfErr(t, d.receive(1, driver.Call{Count: size}, got))
	}
}

// TestStoredMessageMayBeReceivedLate makes the sender's wait for the receiver time out. Because no
// stream waits for a stored message, the sender must wait again.
func TestStoredMessageMayBeReceivedLate(t *testing.T) {
	var isSending atomic.Bool
	var polls atomic.Int32
	waitingAgain := make(chan struct{})
	d := newRankPairWithWaitHook(t, func() error {
		if !isSending.Load() {
			return nil
		}
		switch polls.Add(1) {
		case 1: // end the wait like a timeout
			return &driver.TimeoutError{InCall: "sending"}
		case 2:
			close(waitingAgain)
		}
		return nil
	})
	d.connect()
	const size = 1 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	failIfErr(t, d.send(0, driver.Call{Count: size}, data))
	isSending.Store(true)
	select {
	case <-waitingAgain:
	case <-d.groups[0].Failed():
		t.Fatal(d.groups[0].Cause())
	case <-d.ctx.Done():
		t.Fatal("the sender did not wait again")
	}
	failIfErr(t, d.receive(1, driver.Call{Count: size}, got))
	if !bytes.Equal(got, data) {
		t.Error("the message has the wrong contents")
	}
}

// TestSendingBacklogStopsWhenGroupFails makes a group fail, as a timeout would, while a message is
// in the backlog. The goroutine that sends the backlog must then end.
func TestSendingBacklogStopsWhenGroupFails(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	const size = 1 << 20
	failIfErr(t, d.send(0, driver.Call{Count: size}, make([]byte, size)))
	backlogEnd := d.groups[0].(*communicator).messages.sendPipes[1].backlogSentChannel()
	if backlogEnd == nil {
		t.Fatal("the sender stores no message for the receiver")
	}
	d.groups[0].Abort(&driver.TimeoutError{InCall: "AllReduce 12"})
	select {
	case <-backlogEnd:
	case <-d.ctx.Done():
		t.Error("the sender did not stop after the group had failed")
	}
	d.groups[1].(*communicator).CheckPeers()
}
