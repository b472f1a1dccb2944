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

// In the tests of this file, rank 0 sends messages to rank 1.
const (
	// messageBytes is the size of messages if it does not matter.
	messageBytes = 8
	// noDigest is the digest of messages. It does not matter, because they are not compared.
	noDigest = 0
)

// TestStreamSkipsMessagesOfATornDownGroup launches graphs with messages on streams that are
// blocked until the kernels of the group have been stopped. The streams must then become idle.
func TestStreamSkipsMessagesOfATornDownGroup(t *testing.T) {
	p := openPair(t, 20*time.Second)
	unblocked := make(chan struct{})
	var graphs [2]driver.Graph // by rank
	for r, o := range []driver.Operation{driver.Send, driver.Recv} {
		buffer := p[r].regions[0].segment.Address()
		graphs[r] = p.capture(t, r, func() error {
			return p.message(r, o, buffer, messageBytes, noDigest)
		})
		if err := p[r].stream.Host(func() { <-unblocked }); err != nil {
			t.Fatal(err)
		}

		for range 2 { // the second message must wait for the first
			if err := graphs[r].Launch(p[r].stream); err != nil {
				t.Fatal(err)
			}
		}
	}

	p[0].group.Abort(nil) // the default cause
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

		err := p[r].stream.Close()
		err = errors.Join(err, p[r].device.Close())
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
	const (
		timeout  = 6 * time.Second
		launches = 5
		// All messages together take 5 * 0.3 = 1.5 timeouts. The last one would time out if its
		// timeout began at its launch.
		receiveInterval = timeout * 3 / 10
	)
	p := openPair(t, timeout)
	buffers := p.addresses()
	g := p.capture(t, 0, func() error {
		return p.message(0, driver.Send, buffers[0], messageBytes, noDigest)
	})
	for range launches {
		if err := g.Launch(p[0].stream); err != nil {
			t.Fatal(err)
		}
	}

	for range launches {
		select {
		case <-p[0].group.Failed():
			t.Fatalf("the group failed: %v", p[0].group.Cause())
		case <-time.After(receiveInterval):
		}

		if err := p.message(1, driver.Recv, buffers[1], messageBytes, noDigest); err != nil {
			t.Fatal(err)
		}
	}

	runBoth(t, func(r int) error { return p[r].stream.Synchronize(t.Context()) })
	if err := g.Close(); err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}

// addresses returns the address of the segment of each rank.
func (p *pairOfRanks) addresses() [2]uintptr {
	return [2]uintptr{p[0].regions[0].segment.Address(), p[1].regions[0].segment.Address()}
}

// TestGraphWithMoreSendsThanSlotsIsRefused captures one Send more than there are slots for
// messages. This Send, and a Send outside the graph, must be refused until the graph is closed.
// The group must stay usable.
func TestGraphWithMoreSendsThanSlotsIsRefused(t *testing.T) {
	p := openPair(t, 5*time.Second)
	buffers := p.addresses()
	send := func() error { return p.message(0, driver.Send, buffers[0], messageBytes, noDigest) }
	receive := func() error { return p.message(1, driver.Recv, buffers[1], messageBytes, noDigest) }
	var lastErr error
	g := p.capture(t, 0, func() error {
		for i := range p2p.Slots {
			if err := send(); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}

		lastErr = send()
		return nil
	})
	if !errors.Is(lastErr, driver.ErrUnsupported) {
		t.Errorf("last Send in the graph = %v, want ErrUnsupported", lastErr)
	}

	if err := send(); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("Send before the graph is closed = %v, want ErrUnsupported", err)
	}

	if err := g.Close(); err != nil {
		t.Error(err)
	}

	if err := send(); err != nil {
		t.Errorf("Send after the graph was closed: %v", err)
	}

	if err := receive(); err != nil {
		t.Errorf("Recv after the graph was closed: %v", err)
	}

	runBoth(t, func(r int) error { return p[r].stream.Synchronize(t.Context()) })
	p.closeAll(t)
}

// TestGraphWithMessagesIsLaunchedOnTwoStreams checks that launches on two streams are serialized,
// and that each one transfers a separate message.
func TestGraphWithMessagesIsLaunchedOnTwoStreams(t *testing.T) {
	const launches, size, sentByte = 40, 1000, 7
	p := openPair(t, 20*time.Second)
	buffers := p.addresses()
	var graphs [2]driver.Graph      // by rank
	var streams [2][2]driver.Stream // two streams of each rank
	for r, o := range []driver.Operation{driver.Send, driver.Recv} {
		graphs[r] = p.capture(t, r, func() error {
			return p.message(r, o, buffers[r], size, noDigest)
		})
		other, err := p[r].device.NewStream()
		if err != nil {
			t.Fatal(err)
		}

		streams[r] = [2]driver.Stream{p[r].stream, other}
	}

	if err := p[0].stream.Fill(buffers[0], sentByte, size); err != nil {
		t.Fatal(err)
	}

	if err := p[0].stream.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Rank 0 changes streams after each launch, and rank 1 after two.
	launchesBeforeChange := [2]int{1, 2}
	runBoth(t, func(r int) error {
		for i := range launches {
			s := streams[r][i/launchesBeforeChange[r]%2]
			if err := graphs[r].Launch(s); err != nil {
				return fmt.Errorf("launch %d of rank %d: %w", i, r, err)
			}
		}

		err := streams[r][0].Synchronize(t.Context())
		err = errors.Join(err, streams[r][1].Synchronize(t.Context()))
		err = errors.Join(err, graphs[r].Close())
		return errors.Join(err, streams[r][1].Close()) // closeAll closes the first stream
	})
	want := slices.Repeat([]byte{sentByte}, size)
	if got := p.read(t, 1, 0, size); !slices.Equal(got, want) {
		t.Errorf("the received message begins with %x, want %x", got[:8], want[:8])
	}

	p.closeAll(t)
}

// TestReleasedReplayIsNotReceivedAsAnEarlierMessage releases a replayed Send, as a teardown does:
// the Send stops waiting until the previous message has been received, and overwrites that
// message. The receiver must then accept neither message.
func TestReleasedReplayIsNotReceivedAsAnEarlierMessage(t *testing.T) {
	const size, firstByte, secondByte = 1000, 1, 2 // each message repeats its byte
	p := openPair(t, time.Second)
	buffers := p.addresses()
	g := p.capture(t, 0, func() error {
		return p.message(0, driver.Send, buffers[0], size, noDigest)
	})
	for _, value := range []byte{firstByte, secondByte} {
		if err := p[0].stream.Fill(buffers[0], value, size); err != nil {
			t.Fatal(err)
		}

		if err := g.Launch(p[0].stream); err != nil {
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

	err := p[1].stream.Fill(buffers[1], 0, size)
	if err == nil {
		err = p.message(1, driver.Recv, buffers[1], size, noDigest)
	}

	if err == nil {
		err = p[1].stream.Synchronize(ctx)
	}

	if !errors.As(err, new(*driver.TimeoutError)) {
		t.Errorf("Recv = %v, want a TimeoutError", err)
	}

	if got := p.read(t, 1, 0, size); slices.Contains(got, secondByte) {
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
		defer func() { // the ranks are closed by then
			_ = segment.Unmap()
			_ = arena.Close()
		}()
	}

	g := p.capture(t, 0, func() error {
		return p.message(0, driver.Send, buffers[0], large, noDigest)
	})
	if err := g.Launch(p[0].stream); err != nil {
		t.Fatal(err)
	}

	err := p[0].stream.Synchronize(t.Context())
	err = errors.Join(err, p[0].group.Close())
	err = errors.Join(err, g.Close())
	if err != nil {
		t.Fatal(err)
	}

	<-p[0].group.(*communicator).stages.allFreed
	if err := p.message(1, driver.Recv, buffers[1], large, noDigest); err != nil {
		t.Error(err)
	}

	if err := p[1].stream.Synchronize(t.Context()); err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}
