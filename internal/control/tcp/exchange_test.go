package tcp

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Rank 0 aborts. WaitForAcknowledgements must not return before the impostor, which plays rank 1,
// has acknowledged the fault.
func TestWaitForAcknowledgementsWaitsForPeer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	p.Abort(nil)
	i.await(kindFail)
	notified := make(chan struct{})
	go func() {
		p.WaitForAcknowledgements()
		close(notified)
	}()
	b := status{submitted: ticket}
	i.send(kindStatus, "", 0, b.encode(time.Now()))
	p.mu.Lock()
	for p.records[1].submitted < ticket {
		p.awaitChange(nil, hangTimeout)
	}

	acknowledged := !hasUnacknowledgedFault(&p.groupState)
	p.mu.Unlock()
	if acknowledged {
		t.Error("WaitForAcknowledgements returned before the impostor acknowledged the fault")
	}

	i.send(kindFailAck, "", 0, nil)
	<-notified
	if err := p.Cause(); !errors.Is(err, driver.ErrAborted) {
		t.Errorf("Cause() = %v; want ErrAborted", err)
	}
}

// TestCanSucceed checks a ticket that rank 1 has submitted, and one that it has not. Rank 1 is
// connected, lost, or has reported a fault.
func TestCanSucceed(t *testing.T) {
	for name, c := range map[string]struct {
		lost          bool
		failed        control.Reason
		first, second bool
	}{
		"connected": {first: true, second: true},
		"lost":      {lost: true, first: true},
		"failed":    {failed: control.FailedItself},
	} {
		i := newImpostor(t)
		p := i.joinVictim()
		p.mu.Lock()
		r := &p.records[1]
		r.submitted, r.isLost, r.failed = 1, c.lost, c.failed
		p.mu.Unlock()
		if first, second := p.CanSucceed(1), p.CanSucceed(2); first != c.first || second != c.second {
			t.Errorf("%s: CanSucceed = %t, %t; want %t, %t", name, first, second, c.first, c.second)
		}
	}
}
