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

// TestSendsWithoutReceiverAreStored checks that Sends complete without a receiver, that their
// buffers may then change, and that the messages arrive and leave no memory behind.
func TestSendsWithoutReceiverAreStored(t *testing.T) {
	d := newDuo(t)
	d.connect()
	const messages, size = 3, 5<<20 + 7
	data := make([]byte, size)
	for i := range messages {
		for j := range data {
			data[j] = byte(i + j)
		}
		check(t, d.send(0, driver.Call{Count: size}, data))
	}
	o := &d.groups[0].(*communicator).messages.sendPipes[1]
	idle := o.pushing()
	if idle == nil {
		t.Fatal("nothing is kept for the receiver")
	}
	got := make([]byte, size)
	for i := range messages {
		check(t, d.receive(1, driver.Call{Count: size}, got))
		for j := range data {
			data[j] = byte(i + j)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("message %d has other data", i)
		}
	}
	<-idle
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes != 0 || o.backlog != nil {
		t.Errorf("%d bytes in %d messages are still stored", o.bytes, len(o.backlog))
	}
	if n := len(d.groups[1].(*communicator).messages.recvPipes[0].incoming); n != 0 {
		t.Errorf("the receiver still stores %d messages", n)
	}
}

// TestMessageDuringCloseIsReported sends a message while both ranks close. Close of rank 1 is
// stopped after it has read the pipe, until rank 0 has sent the message and closed. One of the
// ranks must return an error.
func TestMessageDuringCloseIsReported(t *testing.T) {
	d := newDuo(t)
	d.connect()
	receiver := d.groups[1].(*communicator)
	held, release, closed := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		receiver.Counts.Mu.Lock()
		defer receiver.Counts.Mu.Unlock()
		close(held)
		<-release
	}()
	<-held
	go func() { closed <- receiver.Close() }()
	closing := func() bool {
		receiver.Mu.Lock()
		defer receiver.Mu.Unlock()
		return receiver.Closed()
	}
	for deadline := time.Now().Add(processTimeout); !closing(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the receiver does not close")
		}
	}
	check(t, d.send(0, driver.Call{Count: 8}, make([]byte, 8)))
	sender := d.groups[0].Close()
	close(release)
	var found *driver.MessageError
	if err := <-closed; !errors.As(errors.Join(sender, err), &found) {
		t.Errorf("Close returns %v to the sender, %v to the receiver", sender, err)
	}
}

// TestCloseSendsStoredMessages closes a group with messages in the backlog.
func TestCloseSendsStoredMessages(t *testing.T) {
	d := newDuo(t)
	d.connect()
	const size = 3 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	check(t, d.send(0, driver.Call{Count: size}, data))
	closed := make(chan error)
	go func() { closed <- d.groups[0].Close() }()
	check(t, d.receive(1, driver.Call{Count: size}, got))
	check(t, <-closed)
	if !bytes.Equal(got, data) {
		t.Error("received other data")
	}
}

func TestPatienceRestartsWhenReceiverTakesFrame(t *testing.T) {
	const ms = uint64(time.Millisecond)
	o := &sendPipe{}
	for _, c := range []struct {
		taken, now uint64
		kept       int64
		timeout    time.Duration
		want       uint64
	}{
		{0, 100 * ms, 0, time.Minute, 101 * ms},
		{0, 500 * ms, 0, time.Minute, 101 * ms}, // nothing was taken since
		{0, 500 * ms, 5 * backlogUnit, time.Minute, 132 * ms},
		{1, 500 * ms, 5 * backlogUnit, time.Minute, 532 * ms},
		{1, 800 * ms, 1 << 50, time.Minute, 1500 * ms},
		{1, 800 * ms, 1 << 50, 160 * time.Millisecond, 510 * ms},
	} {
		o.bytes = c.kept
		if got := o.patience(c.taken, c.now, c.timeout); got != c.want {
			t.Errorf("%+v: until %d us", c, got/1000)
		}
	}
}

// TestSlowedSendsDoNotDelayCollective makes rank 0 send many messages, with a large backlog, while
// rank 1 waits for it in a collective.
func TestSlowedSendsDoNotDelayCollective(t *testing.T) {
	const messages, size = 100, 1 << 18
	d := newDuo(t)
	d.connect()
	o := &d.groups[0].(*communicator).messages.sendPipes[1]
	o.bytes = 1 << 50
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	for _, err := range d.both(func(rank int) error {
		if rank == 0 {
			for range messages {
				check(t, d.send(0, driver.Call{Count: size}, data))
			}
		}
		return d.message(rank, driver.Call{Operation: driver.Barrier})
	}) {
		check(t, err)
	}
	for range messages {
		check(t, d.receive(1, driver.Call{Count: size}, got))
	}
}

// TestStoredMessageMayBeReceivedLate receives a message after a wait of its sender has timed out.
func TestStoredMessageMayBeReceivedLate(t *testing.T) {
	var pushing atomic.Bool
	var turns atomic.Int32
	again := make(chan struct{})
	d := newDuoThatAsks(t, func() error {
		if !pushing.Load() {
			return nil
		}
		switch turns.Add(1) {
		case 1: // the wait ends as if its timeout were over
			return &driver.TimeoutError{Doing: "pushing"}
		case 2:
			close(again)
		}
		return nil
	})
	d.connect()
	const size = 1 << 20
	data, got := bytes.Repeat([]byte{7}, size), make([]byte, size)
	check(t, d.send(0, driver.Call{Count: size}, data))
	pushing.Store(true)
	select {
	case <-again:
	case <-d.groups[0].Failed():
		t.Fatal(d.groups[0].Cause())
	case <-d.ctx.Done():
		t.Fatal("the sender does not wait again")
	}
	check(t, d.receive(1, driver.Call{Count: size}, got))
	if !bytes.Equal(got, data) {
		t.Error("received other data")
	}
}

// TestPushEndsWhenGroupFails fails a group by the timeout of a collective while a message is in
// the backlog.
func TestPushEndsWhenGroupFails(t *testing.T) {
	d := newDuo(t)
	d.connect()
	const size = 1 << 20
	check(t, d.send(0, driver.Call{Count: size}, make([]byte, size)))
	idle := d.groups[0].(*communicator).messages.sendPipes[1].pushing()
	if idle == nil {
		t.Fatal("nothing is kept for the receiver")
	}
	d.groups[0].Abort(&driver.TimeoutError{Doing: "AllReduce 12"})
	select {
	case <-idle:
	case <-d.ctx.Done():
		t.Error("push has not ended")
	}
	d.groups[1].(*communicator).CheckPeers()
}
