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

// A pipe holds pipeFrames frames (parts of messages) that the receiver has not read. That is less
// than the size of most messages in this file. Sends store the rest of their messages in the pipe's
// backlog, which a goroutine sends once the receiver reads.

// sendPipe returns the pipe through which rank 0 sends messages to rank 1.
func (pair *rankPair) sendPipe() *sendPipe {
	return &pair.groups[0].(*communicator).messages.sendPipes[1]
}

// TestSendsWithoutReceiverAreStored sends several messages before the receiver reads any. The
// Sends must complete, the messages must arrive unchanged although their buffer has been
// overwritten, and both ranks must then free the memory that stored the messages.
func TestSendsWithoutReceiverAreStored(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const messages, size = 3, 5<<20 + 7 // much larger than the pipe, and not whole frames
	setContents := func(data []byte, message int) {
		for j := range data {
			data[j] = byte(message + j)
		}
	}
	data := make([]byte, size)
	for i := range messages {
		setContents(data, i)
		failIfErr(t, pair.send(0, driver.Call{Count: size}, data))
	}

	pipe := pair.sendPipe()
	backlogSent := pipe.backlogSentChannel()
	if backlogSent == nil {
		t.Fatal("the sender stores no message for the receiver")
	}

	got := make([]byte, size)
	for i := range messages {
		failIfErr(t, pair.receive(1, driver.Call{Count: size}, got))
		setContents(data, i)
		if !bytes.Equal(got, data) {
			t.Fatalf("message %d has the wrong contents", i)
		}
	}

	<-backlogSent // closed when the backlog is empty
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.backlogBytes != 0 || pipe.backlog != nil {
		t.Errorf("the sender stores %d bytes in %d messages, want none", pipe.backlogBytes,
			len(pipe.backlog))
	}

	if n := len(pair.groups[1].(*communicator).messages.recvPipes[0].incoming); n != 0 {
		t.Errorf("the receiver stores %d messages, want none", n)
	}
}

// TestMessageDuringCloseIsReported sends a message from rank 0 while rank 1 closes the group. The
// message is lost, so at least one Close must return an error.
//
// Rank 1's Close needs a lock after it has left the group. A goroutine holds this lock until rank 0
// has sent the message and has closed the group, too.
func TestMessageDuringCloseIsReported(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	receiver := pair.groups[1].(*communicator)
	locked := make(chan struct{})  // closed when the goroutine holds the lock
	release := make(chan struct{}) // closed to make the goroutine unlock
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

	failIfErr(t, pair.send(0, driver.Call{Count: 8}, make([]byte, 8)))
	senderErr := pair.groups[0].Close()
	close(release)
	receiverErr := <-receiverResult
	var messageErr *driver.MessageError
	if !errors.As(senderErr, &messageErr) && !errors.As(receiverErr, &messageErr) {
		t.Errorf("Close = %v (sender), %v (receiver); want a MessageError from at least one of them",
			senderErr, receiverErr)
	}
}

// TestCloseSendsStoredMessages closes the sender's group before the receiver has read its message.
// Close must wait until the receiver has the whole message.
func TestCloseSendsStoredMessages(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const size = 3 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	failIfErr(t, pair.send(0, driver.Call{Count: size}, data))
	closed := make(chan error)
	go func() { closed <- pair.groups[0].Close() }()
	failIfErr(t, pair.receive(1, driver.Call{Count: size}, got))
	failIfErr(t, <-closed)
	if !bytes.Equal(got, data) {
		t.Error("the message has the wrong contents")
	}
}

// TestSendWaitRestartsWhenReceiverReadsFrame calls waitDeadline for a pipe that stays full. The
// rows are successive calls. The first wait begins at 100 ms. A second wait begins at 500 ms, in
// the first row in which the receiver has read a frame.
//
// The length of a wait is 1 ns per byte of the message's rest, but at least 1 ms. It doubles for
// each backlogUnit of backlog. It is at most 1 s, and at most 1/16 of the timeout.
func TestSendWaitRestartsWhenReceiverReadsFrame(t *testing.T) {
	const ms = uint64(time.Millisecond)
	const hugeBytes = 1 << 50 // leads to the longest wait
	pipe := &sendPipe{}
	for _, c := range []struct {
		readFrames   uint64 // frames that the receiver has read
		now          uint64 // in nanoseconds
		restBytes    int64  // of the message
		backlogBytes int64
		timeout      time.Duration
		want         uint64 // end of the wait in nanoseconds
	}{
		{now: 100 * ms, timeout: time.Minute, want: (100 + 1) * ms},
		{now: 500 * ms, timeout: time.Minute, want: (100 + 1) * ms},
		{now: 500 * ms, restBytes: 64e6, timeout: time.Minute, want: (100 + 64) * ms},
		{now: 500 * ms, restBytes: hugeBytes, timeout: time.Minute, want: (100 + 1000) * ms},
		{
			now: 500 * ms, backlogBytes: 5 * backlogUnit, timeout: time.Minute,
			want: (100 + 32) * ms, // 1 ms, doubled five times
		},
		{
			readFrames: 1, now: 500 * ms, backlogBytes: 5 * backlogUnit, timeout: time.Minute,
			want: (500 + 32) * ms,
		},
		{
			readFrames: 1, now: 800 * ms, backlogBytes: hugeBytes, timeout: time.Minute,
			want: (500 + 1000) * ms,
		},
		{
			readFrames: 1, now: 800 * ms, backlogBytes: hugeBytes, timeout: 160 * time.Millisecond,
			want: (500 + 160/16) * ms,
		},
	} {
		pipe.backlogBytes = c.backlogBytes
		got := pipe.waitDeadline(c.readFrames, c.now, c.restBytes, c.timeout)
		if got != c.want {
			t.Errorf("waitDeadline(read %d, now %v, rest %d, timeout %v) = %v with a backlog of %d "+
				"bytes, want %v", c.readFrames, time.Duration(c.now), c.restBytes, c.timeout,
				time.Duration(got), c.backlogBytes, time.Duration(c.want))
		}
	}
}

// TestThrottledSendsDoNotDelayCollective makes rank 0 send many messages before it enters a
// collective in which rank 1 waits. Because of the large backlog, Sends wait for the receiver, for
// up to a second. If each Send did, the collective would time out after processTimeout.
func TestThrottledSendsDoNotDelayCollective(t *testing.T) {
	const messages, size = 100, 1 << 18
	pair := newRankPair(t)
	pair.connect()
	pair.sendPipe().backlogBytes = 1 << 50 // pretended; makes Sends wait as long as possible
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	for _, err := range pair.runOnBoth(func(rank int) error {
		if rank == 0 {
			for range messages {
				if err := pair.send(0, driver.Call{Count: size}, data); err != nil {
					return err
				}
			}
		}

		return pair.run(rank, driver.Call{Operation: driver.Barrier})
	}) {
		failIfErr(t, err)
	}

	for range messages {
		failIfErr(t, pair.receive(1, driver.Call{Count: size}, got))
	}
}

// TestStoredMessageMayBeReceivedLate makes the sender's wait for the receiver time out. Because no
// stream waits for a stored message, the sender must wait again.
func TestStoredMessageMayBeReceivedLate(t *testing.T) {
	var isSending atomic.Bool           // set once the Send has stored its message
	var polls atomic.Int32              // calls of the hook since then
	waitingAgain := make(chan struct{}) // closed at the second of these calls
	pair := newRankPairWithWaitHook(t, func() error {
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
	pair.connect()
	const size = 1 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	failIfErr(t, pair.send(0, driver.Call{Count: size}, data))
	isSending.Store(true)
	select {
	case <-waitingAgain:
	case <-pair.groups[0].Failed():
		t.Fatal(pair.groups[0].Cause())
	case <-pair.ctx.Done():
		t.Fatal("the sender did not wait again")
	}

	failIfErr(t, pair.receive(1, driver.Call{Count: size}, got))
	if !bytes.Equal(got, data) {
		t.Error("the message has the wrong contents")
	}
}

// TestSendingBacklogStopsWhenGroupFails makes a group fail, as a timeout would, while a message is
// in the backlog. The goroutine that sends the backlog must then end.
func TestSendingBacklogStopsWhenGroupFails(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	const size = 1 << 20
	failIfErr(t, pair.send(0, driver.Call{Count: size}, make([]byte, size)))
	backlogEnd := pair.sendPipe().backlogSentChannel()
	if backlogEnd == nil {
		t.Fatal("the sender stores no message for the receiver")
	}

	pair.groups[0].Abort(&driver.TimeoutError{InCall: "AllReduce 12"})
	select {
	case <-backlogEnd:
	case <-pair.ctx.Done():
		t.Error("the sender did not stop after the group had failed")
	}

	// Make rank 1 observe the fault. Otherwise, its Close would report the lost message.
	pair.groups[1].(*communicator).CheckPeers()
}
