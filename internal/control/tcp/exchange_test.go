package tcp

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestAwaitNotifiedWaitsForPeer fails rank 0. AwaitNotified must not return before the impostor has
// acknowledged the fault. The impostor's submissions are then known.
func TestAwaitNotifiedWaitsForPeer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	if p.Submitted(ticket) {
		t.Errorf("Submitted(%d) = true before the impostor has submitted it", ticket)
	}
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
		t.Error("the fault counts as acknowledged before the impostor has answered")
	}
	if !p.Submitted(ticket) {
		t.Errorf("Submitted(%d) = false after the impostor has submitted it", ticket)
	}
	i.send(kindFailAck, "", 0, nil)
	<-notified
	if err := p.Cause(); !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Cause = %v; want ErrAborted", err)
	}
}
