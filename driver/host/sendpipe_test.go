package host

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"symmem/driver"
)

// The stream of a Send that nobody receives goes on, the buffer may change, and what was sent comes
// all the same. Nothing of it is kept afterwards.
func TestWhatNobodyReceivesYetIsKeptForTheReceiver(t *testing.T) {
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
			t.Fatalf("message %d is another one", i)
		}
	}
	<-idle
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes != 0 || o.backlog != nil {
		t.Errorf("%d bytes in %d messages are kept still", o.bytes, len(o.backlog))
	}
	if n := len(d.groups[1].(*communicator).messages.recvPipes[0].incoming); n != 0 {
		t.Errorf("%d messages are kept by the receiver", n)
	}
}

// A message that is sent while both ranks close is an error of one of them: rank 1 is kept in its
// Close, after it has looked at what has come, until rank 0 has sent one and has closed.
func TestAMessageThatIsSentWhileBothRanksCloseIsFound(t *testing.T) {
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
		t.Errorf("the sender says %v, the receiver %v", sender, err)
	}
}

// Closing sends what was left to be pushed first.
func TestACloseWaitsForWhatIsOnItsWay(t *testing.T) {
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
		t.Error("other bytes came")
	}
}

func TestASendIsMorePatientTheMoreIsKept(t *testing.T) {
	d := newDuo(t)
	d.connect()
	c := d.groups[0].(*communicator)
	s := &send{messageCall: messageCall{c: c}, out: &sendPipe{}}
	if got := s.waitTime(); got != sendWait {
		t.Errorf("with nothing kept it is %v", got)
	}
	s.out.bytes = 5 * backlogUnit
	if got := s.waitTime(); got != 32*sendWait {
		t.Errorf("with five units it is %v", got)
	}
	s.out.bytes = 1 << 50
	if got := s.waitTime(); got != c.device.cfg.Timeout/4 {
		t.Errorf("with a lot it is %v", got)
	}
}
