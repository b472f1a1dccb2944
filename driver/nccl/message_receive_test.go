package nccl

import (
	"testing"
	"time"

	"symmem/driver"
)

// TestRecvReportsArrivalBeforeItsCopyIsQueued blocks a Recv after it has queued its wait, while
// it queues its copy. The Recv must nevertheless report that its message has arrived. On a real
// GPU, queueing the copy can block while another thread frees memory, because CUDA then waits for
// all streams.
func TestRecvReportsArrivalBeforeItsCopyIsQueued(t *testing.T) {
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
	received, arrived := make(chan error, 1), make(chan struct{})
	go func() {
		err := p.queue(1, driver.Call{
			Operation: driver.Recv, DataType: driver.Uint8, Count: 8,
			Recv:    p[1].regions[0].segment.Address(),
			Arrived: func(int) { close(arrived) },
		})
		if err == nil {
			err = p[1].stream.Synchronize(t.Context())
		}

		received <- err
	}()
	if err := p.message(0, driver.Send, p[0].regions[0].segment.Address(), 8, 0); err != nil {
		t.Error(err)
	}

	select {
	case <-arrived:
	case <-time.After(10 * time.Second):
		t.Error("Recv did not report the message before its copy was queued")
	}

	close(unlock)
	<-unlocked
	if err := <-received; err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}
