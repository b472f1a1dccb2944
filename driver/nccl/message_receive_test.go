package nccl

import (
	"testing"
	"time"

	"symmem/driver"
)

// TestRecvGetsItsMessageBeforeItsCopyIsQueued blocks the call that queues the copy after the wait
// of a Recv. On GPUs that happens if another thread frees memory, since that waits for all streams.
func TestRecvGetsItsMessageBeforeItsCopyIsQueued(t *testing.T) {
	p := openPair(t, 20*time.Second)
	locked, unlock, unlocked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(unlocked)
		copies := &p[1].group.(*communicator).device.messages.Copies
		copies.Mu.Lock()
		defer copies.Mu.Unlock()
		close(locked)
		<-unlock
	}()
	<-locked
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
		t.Error("the Recv does not get its message before its copy is queued")
	}
	close(unlock)
	<-unlocked
	if err := <-received; err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}
