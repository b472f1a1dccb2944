package tcp

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestAwaitNotifiedWaitsForPeer aborts rank 0 and checks that AwaitNotified does not return
// before the impostor, which plays rank 1, has acknowledged the fault.
func TestAwaitNotifiedWaitsForPeer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	p.Abort(nil)
	i.await(kindFail)
	notified := make(chan struct{})
	go func() {
		p.AwaitNotified()
		close(notified)
	}()
	b := status{submitted: ticket}
	i.send(kindStatus, "", 0, b.encode(time.Now()))
	p.mu.Lock()
	for p.records[1].submitted < ticket {
		p.pause(nil, patience)
	}
	acknowledged := !unacknowledged(&p.groupState)
	p.mu.Unlock()
	if acknowledged {
		t.Error("AwaitNotified returned before the impostor acknowledged the fault")
	}
	i.send(kindFailAck, "", 0, nil)
	<-notified
	if err := p.Cause(); !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Cause() = %v; want ErrAborted", err)
	}
}
