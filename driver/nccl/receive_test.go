package nccl

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/spin"
)

// TestMessagesThatCannotBeAreRefused has a peer tell what no Send tells. Nothing is read where it
// says, and nothing hangs.
func TestMessagesThatCannotBeAreRefused(t *testing.T) {
	needDevices(t, 2)
	for what, spoil := range map[string]func(h *header){
		"another size of the segment that is mapped": func(h *header) { h.size, h.offset = 1<<40, 1<<39 },
		"a segment of more bytes than there are":     func(h *header) { h.segment, h.size = 2, 1<<63 },
		"a segment whose number has no end":          func(h *header) { h.segment = 1<<32 + 1 },
		"an offset behind the end":                   func(h *header) { h.offset = h.size - 4 },
		"an offset that overflows":                   func(h *header) { h.offset = ^uint64(3) },
		"a place that there is not":                  func(h *header) { h.place = boxPlaces },
		"no segment":                                 func(h *header) { h.segment = 0 },
		"no number":                                  func(h *header) { h.number = 0 },
		"a tag that there is not":                    func(h *header) { h.tag = driver.MaxTag + 1 },
	} {
		t.Run(what, func(t *testing.T) {
			p := spoilt(t, func(c *communicator, b *box) {
				h := header{
					number: 1, bytes: 8, segment: 1, size: uint64(c.firstStaging()),
				}
				spoil(&h)
				atomic.StoreUint32(&c.marksTo(1).full[0], 1)
				b.post(&h)
			})
			p.closeAll(t)
		})
	}
	t.Run("more messages than there can be", func(t *testing.T) {
		p := spoilt(t, func(_ *communicator, b *box) { spin.StoreRelease64(&b.posted, 1<<60) })
		p.closeAll(t)
	})
	t.Run("more messages than were told of when the peer left", func(t *testing.T) {
		var p pairOfRanks
		p.open(t, 5*time.Second)
		c := p[0].group.(*communicator)
		box := c.messages.outlets[1].mailbox
		spin.StoreRelease64(&box.box(0).posted, 1<<60)
		atomic.StoreUint32(&box.bell().left, 1)
		c.mu.Lock()
		if got := len(c.untaken(1)); got > boxPlaces {
			t.Errorf("got %d messages", got)
		}
		c.mu.Unlock()
		atomic.StoreUint32(&box.bell().left, 0)
		spin.StoreRelease64(&box.box(0).posted, 0)
		p.closeAll(t)
	})
}

// spoilt opens ranks, has the first spoil what it tells the second, which receives and must refuse
// that.
func spoilt(t *testing.T, spoil func(c *communicator, b *box)) *pairOfRanks {
	t.Helper()
	var p pairOfRanks
	p.open(t, 20*time.Second)
	c := p[0].group.(*communicator)
	spoil(c, c.messages.outlets[1].mailbox.box(0))
	refused := make(chan error, 1)
	go func() {
		err := p.message(1, driver.Recv, p[1].segment.Address(), 8, 0)
		if err == nil {
			err = p[1].stream.Synchronize(t.Context())
		}
		refused <- err
	}()
	select {
	case err := <-refused:
		if err == nil {
			t.Error("the message was received")
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody refuses it")
	}
	return &p
}

// TestARecvIsGivenItsMessageWhileItsCopyCannotBeQueued has the call behind the wait of a Recv not
// return: on GPUs a thread that frees memory waits for all streams, and with it that call.
func TestARecvIsGivenItsMessageWhileItsCopyCannotBeQueued(t *testing.T) {
	needDevices(t, 2)
	var p pairOfRanks
	p.open(t, 20*time.Second)
	taken, let, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		held := &p[1].group.(*communicator).device.copies
		held.Mu.Lock()
		defer held.Mu.Unlock()
		close(taken)
		<-let
	}()
	<-taken
	received := make(chan error, 1)
	go func() {
		err := p.message(1, driver.Recv, p[1].segment.Address(), 8, 0)
		if err == nil {
			err = p[1].stream.Synchronize(t.Context())
		}
		received <- err
	}()
	if err := p.message(0, driver.Send, p[0].segment.Address(), 8, 0); err != nil {
		t.Error(err)
	}
	c := p[1].group.(*communicator)
	m := &c.messages
	given := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.receives) == 1 && m.receives[0].handled
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if gpu.Poll(ctx, given) != nil {
		t.Error("the Recv waits for its message, which is there, until its copy is queued")
	}
	close(let)
	<-gone
	if err := <-received; err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}
