package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
)

// TestStreamSkipsMessagesOfATornDownGroup launches graphs with messages on streams that are
// blocked until the kernels of the group have been stopped. The streams must then become idle.
func TestStreamSkipsMessagesOfATornDownGroup(t *testing.T) {
	p := openPair(t, 20*time.Second)
	unblocked := make(chan struct{})
	var graphs [2]driver.Graph
	for r, o := range []driver.Operation{driver.Send, driver.Recv} {
		buffer := p[r].regions[0].segment.Address()
		graphs[r] = p.capture(t, r, func() error { return p.message(r, o, buffer, 8, 0) })
		err := errors.Join(p[r].stream.Host(func() { <-unblocked }),
			graphs[r].Launch(p[r].stream), graphs[r].Launch(p[r].stream))
		if err != nil {
			t.Fatal(err)
		}
	}
	p[0].group.Abort(nil)
	for r := range p {
		<-p[r].group.(*communicator).stages.kernelsEnded // after gpu.KernelEndTimeout
	}
	close(unblocked)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for r := range p {
		_ = p[r].stream.Synchronize(ctx) // returns the group's fault
		if err := p[r].stream.Synchronize(ctx); err != nil {
			t.Errorf("rank %d: second Synchronize = %v, want nil", r, err)
		}
		if err := graphs[r].Close(); err != nil {
			t.Errorf("rank %d: closing the graph: %v", r, err)
		}
		err := errors.Join(p[r].stream.Close(), p[r].device.Close())
		isTimeout := errors.As(err, new(*driver.TimeoutError)) // the teardown may have timed out
		if err != nil && !isTimeout {
			t.Errorf("rank %d: closing the stream and the device: %v", r, err)
		}
	}
}

// TestEachReplayOfASendHasTheFullTimeout launches a graph with a Send several times while the
// receiver is slow. The timeout for each message must start only after the previous message has
// been received.
func TestEachReplayOfASendHasTheFullTimeout(t *testing.T) {
	const timeout, launches = 6 * time.Second, 5
	p := openPair(t, timeout)
	buffers := p.addresses()
	g := p.capture(t, 0, func() error { return p.message(0, driver.Send, buffers[0], 8, 0) })
	for range launches {
		if err := g.Launch(p[0].stream); err != nil {
			t.Fatal(err)
		}
	}
	for range launches {
		select {
		case <-p[0].group.Failed():
			t.Fatalf("the group failed: %v", p[0].group.Cause())
		case <-time.After(timeout * 3 / 10): // the last message waits for longer than the timeout
		}
		if err := p.message(1, driver.Recv, buffers[1], 8, 0); err != nil {
			t.Fatal(err)
		}
	}
	runBoth(t, func(r int) error { return p[r].stream.Synchronize(t.Context()) })
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}

func (p *pairOfRanks) addresses() [2]uintptr {
	return [2]uintptr{p[0].regions[0].segment.Address(), p[1].regions[0].segment.Address()}
}

// TestGraphWithMoreSendsThanSlotsIsRefused captures one Send more than there are slots for
// messages. This Send, and a Send outside the graph, must be refused until the graph is closed.
// The group must stay usable.
func TestGraphWithMoreSendsThanSlotsIsRefused(t *testing.T) {
	p := openPair(t, 5*time.Second)
	buffer := p[0].regions[0].segment.Address()
	var lastErr error
	g := p.capture(t, 0, func() error {
		for i := range p2p.Slots {
			if err := p.message(0, driver.Send, buffer, 8, 0); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
		lastErr = p.message(0, driver.Send, buffer, 8, 0)
		return nil
	})
	if !errors.Is(lastErr, driver.ErrUnsupported) {
		t.Errorf("last Send in the graph = %v, want ErrUnsupported", lastErr)
	}
	if err := p.message(0, driver.Send, buffer, 8, 0); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Send before the graph is closed = %v, want ErrUnsupported", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for r, o := range []driver.Operation{driver.Send, driver.Recv} {
		if err := p.message(r, o, p[r].regions[0].segment.Address(), 8, 0); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	runBoth(t, func(r int) error { return p[r].stream.Synchronize(t.Context()) })
	p.closeAll(t)
}

// TestGraphWithMessagesIsLaunchedOnTwoStreams checks that launches on two streams are serialized,
// and that each one transfers a separate message.
func TestGraphWithMessagesIsLaunchedOnTwoStreams(t *testing.T) {
	const launches, size = 40, 1000
	p := openPair(t, 20*time.Second)
	buffers := p.addresses()
	var graphs [2]driver.Graph      // by rank
	var streams [2][2]driver.Stream // two streams of each rank
	for r, o := range []driver.Operation{driver.Send, driver.Recv} {
		graphs[r] = p.capture(t, r, func() error { return p.message(r, o, buffers[r], size, 0) })
		other, err := p[r].device.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		streams[r] = [2]driver.Stream{p[r].stream, other}
	}
	err := errors.Join(p[0].stream.Fill(buffers[0], 7, size), p[0].stream.Synchronize(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	runBoth(t, func(r int) error {
		for i := range launches {
			s := streams[r][i/(1+r)%2] // rank 0 changes streams after each launch, and rank 1 after two
			if err := graphs[r].Launch(s); err != nil {
				return fmt.Errorf("launch %d of rank %d: %w", i, r, err)
			}
		}
		return errors.Join(streams[r][0].Synchronize(t.Context()),
			streams[r][1].Synchronize(t.Context()), graphs[r].Close(), streams[r][1].Close())
	})
	want := slices.Repeat([]byte{7}, size)
	if got := p.read(t, 1, 0, size); !slices.Equal(got, want) {
		t.Errorf("the received message begins with %x, want %x", got[:8], want[:8])
	}
	p.closeAll(t)
}

// TestReleasedReplayIsNotReceivedAsAnEarlierMessage releases a replayed Send, as a teardown does:
// the Send stops waiting until the previous message has been received, and overwrites that
// message. The receiver must then not accept the first message.
func TestReleasedReplayIsNotReceivedAsAnEarlierMessage(t *testing.T) {
	const size = 1000
	p := openPair(t, time.Second)
	buffers := p.addresses()
	g := p.capture(t, 0, func() error { return p.message(0, driver.Send, buffers[0], size, 0) })
	for _, value := range []byte{1, 2} { // the bytes of the first and of the second message
		err := errors.Join(p[0].stream.Fill(buffers[0], value, size), g.Launch(p[0].stream))
		if err != nil {
			t.Fatal(err)
		}
	}
	c := p[0].group.(*communicator)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	isReleased := func() bool {
		c.messages.Release()
		return p[0].stream.(*stream.Stream).Idle()
	}
	if err := gpu.Poll(ctx, isReleased); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(p[1].stream.Fill(buffers[1], 0, size),
		p.message(1, driver.Recv, buffers[1], size, 0))
	if err == nil {
		err = p[1].stream.Synchronize(ctx)
	}
	if !errors.As(err, new(*driver.TimeoutError)) {
		t.Errorf("Recv = %v, want a TimeoutError", err)
	}
	if got := p.read(t, 1, 0, size); slices.Contains(got, 2) {
		t.Error("the second message was received in place of the first")
	}
	_ = p[0].stream.Synchronize(ctx) // returns the group's fault
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}

// TestCapturedMessageOutlivesTheGroupOfItsSender receives a message after the sender has closed
// its group and graph. The message is so large that the receiver has not mapped its memory in
// advance.
func TestCapturedMessageOutlivesTheGroupOfItsSender(t *testing.T) {
	const large = 16 << 20
	p := openPair(t, 10*time.Second)
	var buffers [2]uintptr // by rank
	for r := range p {
		arena, err := p[r].device.NewArena(large)
		if err != nil {
			t.Fatal(err)
		}
		segment, err := arena.Map(0, large)
		if err != nil {
			t.Fatal(err)
		}
		buffers[r] = segment.Address()
		defer func() { _ = errors.Join(segment.Unmap(), arena.Close()) }()
	}
	g := p.capture(t, 0, func() error { return p.message(0, driver.Send, buffers[0], large, 0) })
	err := errors.Join(g.Launch(p[0].stream), p[0].stream.Synchronize(t.Context()),
		p[0].group.Close(), g.Close())
	if err != nil {
		t.Fatal(err)
	}
	<-p[0].group.(*communicator).stages.allFreed
	err = errors.Join(p.message(1, driver.Recv, buffers[1], large, 0),
		p[1].stream.Synchronize(t.Context()))
	if err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}
