package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// TestAWordIsReadOnAnyStack reads a word on stacks of all sizes, of which some grow, and so move,
// between the beginning of the reading and CUDA's call.
func TestAWordIsReadOnAnyStack(t *testing.T) {
	needDevices(t, 2)
	var p pairOfRanks
	p.open(t, 10*time.Second)
	boxes := &p[0].group.(*communicator).mailboxes
	credit := boxes.own().credit(1, 0)
	for depth := range 256 {
		got := make(chan uint32)
		go func() { got <- atDepth(depth, func() uint32 { return boxes.word(credit) }) }()
		if word := <-got; word != 1 {
			t.Fatalf("at depth %d the word of an empty slot is %d, want 1", depth, word)
		}
	}
	p.closeAll(t)
}

// TestARefusedMessageLeavesWhatComesBeforeIt refuses a message for which the receiver's stream does
// not wait yet, since it has to fill the buffer first.
func TestARefusedMessageLeavesWhatComesBeforeIt(t *testing.T) {
	needDevices(t, 2)
	const bytes = 5 * slotBytes / 2
	var p pairOfRanks
	p.open(t, 10*time.Second)
	sender, receiver := &p[0], &p[1]
	sender.group.SetCheck(true)
	receiver.group.SetCheck(true)
	arena, err := receiver.device.NewArena(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	segment, err := arena.Map(0, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	err = errors.Join(
		receiver.stream.Host(func() { <-gate }),
		receiver.stream.Fill(segment.Address(), 0xa5, bytes),
		p.message(1, driver.Recv, segment.Address(), bytes, 1))
	if err != nil {
		t.Fatal(err)
	}
	// The receiver sees what is coming before it comes, and may have failed by then.
	err = p.message(0, driver.Send, sender.segment.Address(), bytes/2, 2)
	if err != nil && !errors.Is(err, driver.ErrFault) {
		t.Errorf("the sender got %v, want ErrFault or nothing", err)
	}
	<-receiver.group.Failed()
	c := receiver.group.(*communicator)
	<-c.ended
	c.releaseMessages()
	close(gate)
	var differ *driver.MismatchError
	if err := receiver.stream.Synchronize(t.Context()); !errors.As(err, &differ) {
		t.Errorf("got %v, want a MismatchError", err)
	}
	got := make([]byte, bytes)
	err = errors.Join(receiver.stream.Copy(dl.AddressOf(&got[0]), segment.Address(), bytes),
		receiver.stream.Synchronize(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if b != 0xa5 {
			t.Fatalf("byte %d of %d is %#x, want 0xa5", i, bytes, b)
		}
	}
	if err := errors.Join(segment.Unmap(), arena.Close()); err != nil {
		t.Error(err)
	}
	_ = sender.stream.Synchronize(t.Context()) // which tells that the group has failed
	p.closeAll(t)
}

// message launches one end of a message.
func (p *pairOfRanks) message(
	r int, o driver.Operation, at uintptr, bytes int64, digest uint64,
) error {
	plan, err := p[r].group.Prepare(driver.Call{
		Operation: o, DataType: driver.Uint8, Count: bytes, Send: at, Recv: at, Root: 1 - r,
		Digest: digest,
	})
	if err != nil {
		return err
	}
	return p[r].group.Launch(p[r].stream, plan)
}

// atDepth calls a function below as many frames.
//
//go:noinline
func atDepth(depth int, f func() uint32) uint32 {
	if depth == 0 {
		return f()
	}
	return atDepth(depth-1, f)
}
