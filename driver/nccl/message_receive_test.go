package nccl

import (
	"testing"
	"time"

	"symmem/driver"
)

// TestARecvIsGivenItsMessageWhileItsCopyCannotBeQueued has the call behind the wait of a Recv not
// return: on GPUs a thread that frees memory waits for all streams, and with it that call.
func TestARecvIsGivenItsMessageWhileItsCopyCannotBeQueued(t *testing.T) {
	p := openPair(t, 20*time.Second)
	taken, let, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		held := &p[1].group.(*communicator).device.messages.Copies
		held.Mu.Lock()
		defer held.Mu.Unlock()
		close(taken)
		<-let
	}()
	<-taken
	received, given := make(chan error, 1), make(chan struct{})
	go func() {
		err := p.queue(1, driver.Call{
			Operation: driver.Recv, DataType: driver.Uint8, Count: 8,
			Recv:    p[1].owned[0].segment.Address(),
			Arrived: func(int) { close(given) },
		})
		if err == nil {
			err = p[1].stream.Synchronize(t.Context())
		}
		received <- err
	}()
	if err := p.message(0, driver.Send, p[0].owned[0].segment.Address(), 8, 0); err != nil {
		t.Error(err)
	}
	select {
	case <-given:
	case <-time.After(10 * time.Second):
		t.Error("the Recv waits for its message, which is there, until its copy is queued")
	}
	close(let)
	<-gone
	if err := <-received; err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}
