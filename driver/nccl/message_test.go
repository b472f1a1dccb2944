package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/internal/dl"
)

// message launches a Send to the other rank or a Recv from it.
func (p *pairOfRanks) message(
	r int, o driver.Operation, buffer uintptr, bytes int64, digest uint64,
) error {
	return p.messageWithTag(r, o, buffer, bytes, digest, 0)
}

func (p *pairOfRanks) messageWithTag(
	r int, o driver.Operation, buffer uintptr, bytes int64, digest uint64, tag int,
) error {
	return p.queue(r, driver.Call{
		Operation: o, DataType: driver.Uint8, Count: bytes, Send: buffer, Recv: buffer, Root: 1 - r,
		Digest: digest, Tag: tag,
	})
}

// read waits for a rank's stream and returns n bytes of its segment.
func (p *pairOfRanks) read(t *testing.T, r int, offset uintptr, n int) []byte {
	t.Helper()
	got := make([]byte, n)
	err := errors.Join(
		p[r].stream.Copy(dl.AddressOf(&got[0]), p[r].regions[0].segment.Address()+offset, int64(n)),
		p[r].stream.Synchronize(t.Context()))
	if err != nil {
		t.Fatalf("rank %d: %v", r, err)
	}

	return got
}

func (p *pairOfRanks) capture(t *testing.T, r int, calls func() error) driver.Graph {
	t.Helper()
	err := errors.Join(p[r].stream.BeginCapture(), calls())
	g, endErr := p[r].stream.EndCapture()
	if err := errors.Join(err, endErr); err != nil {
		t.Fatalf("rank %d: %v", r, err)
	}

	return g
}

// TestMismatchedMessageKeepsEarlierWork makes a Recv fail before its stream reaches it. Work that
// was queued earlier must still fill the buffer, and the Recv must not write to it.
func TestMismatchedMessageKeepsEarlierWork(t *testing.T) {
	const bytes = 1 << 20
	p := openPair(t, 10*time.Second)
	sender, receiver := p[0], p[1]
	sender.group.SetCheck(true)
	receiver.group.SetCheck(true)
	gate := make(chan struct{})
	err := errors.Join(
		receiver.stream.Host(func() { <-gate }),
		receiver.stream.Fill(receiver.regions[0].segment.Address(), 0xa5, bytes),
		p.message(1, driver.Recv, receiver.regions[0].segment.Address(), bytes, 1),
		p.message(0, driver.Send, sender.regions[0].segment.Address(), bytes/2, 2))
	if err != nil {
		t.Fatal(err)
	}

	<-receiver.group.Failed()
	close(gate)
	var messageErr *driver.MessageError
	if err := receiver.stream.Synchronize(t.Context()); !errors.As(err, &messageErr) {
		t.Errorf("Synchronize = %v, want a MessageError", err)
	}

	written := func(b byte) bool { return b != 0xa5 }
	if slices.ContainsFunc(p.read(t, 1, 0, bytes), written) {
		t.Error("the failed Recv wrote to the buffer")
	}

	_ = sender.stream.Synchronize(t.Context()) // returns the group's fault
	p.closeAll(t)
}

// TestSendReplaysMayPrecedeReceives launches a graph with a Send many times before the first
// Recv. Two thirds of the receives are also replays of a graph.
func TestSendReplaysMayPrecedeReceives(t *testing.T) {
	const replays, size = 30, 1000
	p := openPair(t, 20*time.Second)
	at := [2]uintptr{p[0].regions[0].segment.Address(), p[1].regions[0].segment.Address()}
	sends := p.capture(t, 0, func() error { return p.message(0, driver.Send, at[0], size, 0) })
	recvs := p.capture(t, 1, func() error { return p.message(1, driver.Recv, at[1], size, 0) })
	for i := range replays {
		err := errors.Join(p[0].stream.Fill(at[0], byte(i+1), size), sends.Launch(p[0].stream))
		if err != nil {
			t.Fatal(err)
		}
	}

	for i := range replays {
		call := recvs.Launch
		if i%3 == 0 {
			call = func(driver.Stream) error { return p.message(1, driver.Recv, at[1], size, 0) }
		}

		err := errors.Join(call(p[1].stream),
			p[1].stream.Copy(at[1]+uintptr(1+i)*size, at[1], size))
		if err != nil {
			t.Fatal(err)
		}
	}

	got := p.read(t, 1, size, replays*size)
	for i := range replays {
		if want := bytes.Repeat([]byte{byte(i + 1)}, size); !bytes.Equal(got[i*size:][:size], want) {
			t.Errorf("message %d begins with %x, want %x", i+1, got[i*size:][:8], want[:8])
		}
	}

	err := errors.Join(p[0].stream.Synchronize(t.Context()), sends.Close(), recvs.Close())
	if err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}

// TestReplayedSendTimeoutNamesTheReceiver replays a Send although the receiver has not received
// the previous message. The timeout error must name the receiver.
func TestReplayedSendTimeoutNamesTheReceiver(t *testing.T) {
	p := openPair(t, time.Second)
	at := p[0].regions[0].segment.Address()
	g := p.capture(t, 0, func() error { return p.message(0, driver.Send, at, 8, 0) })
	if err := g.Launch(p[0].stream); err != nil {
		t.Fatal(err)
	}

	if err := p[0].stream.Synchronize(t.Context()); err != nil {
		t.Fatalf("the first Send: %v", err)
	}

	if err := g.Launch(p[0].stream); err != nil {
		t.Fatal(err)
	}

	checkTimeoutOfRank1(t, p[0].stream.Synchronize(t.Context()))
	if err := g.Close(); err != nil {
		t.Error(err)
	}

	p.closeWithUnreceived(t, 2)
}

// closeWithUnreceived closes the ranks. The error on rank 1 must list the given number of
// messages that were not received.
func (p *pairOfRanks) closeWithUnreceived(t *testing.T, messages int) {
	t.Helper()
	var e *driver.MessageError
	err := p[1].group.Close()
	if !errors.As(err, &e) || e.Fault != driver.MessagesUnmatched || len(e.Ends) != messages {
		t.Errorf("rank 1: Close = %v, want a MessageError about %d messages", err, messages)
	}

	p.closeAll(t)
}

// checkTimeoutOfRank1 checks that err is a TimeoutError about rank 1.
func checkTimeoutOfRank1(t *testing.T, err error) {
	t.Helper()
	var timeoutErr *driver.TimeoutError
	if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) ||
		timeoutErr.Activity[1] == "" {
		t.Errorf("got %v, want a TimeoutError that names rank 1 and its activity", err)
	}
}

// TestSendWaitsForASlot sends more messages than there are slots, first with a receiver and then
// without.
func TestSendWaitsForASlot(t *testing.T) {
	p := openPair(t, 20*time.Second)
	runBoth(t, func(r int) error {
		o := driver.Send
		if r == 1 {
			o = driver.Recv
		}

		for i := range 3 * p2p.Slots {
			if err := p.message(r, o, p[r].regions[0].segment.Address(), int64(i%7), 0); err != nil {
				return fmt.Errorf("message %d of rank %d: %w", i, r, err)
			}

			if r == 1 && i%100 == 0 {
				if err := p[1].stream.Synchronize(t.Context()); err != nil {
					return err
				}
			}
		}

		return p[r].stream.Synchronize(t.Context())
	})
	p.closeAll(t)

	p = openPair(t, time.Second)
	var err error
	for i := 0; i <= p2p.Slots && err == nil; i++ {
		err = p.message(0, driver.Send, p[0].regions[0].segment.Address(), 1, 0)
		if (err != nil) != (i == p2p.Slots) {
			t.Errorf("message %d: got %v, want an error only for message %d", i, err, p2p.Slots)
		}
	}

	checkTimeoutOfRank1(t, err)
	_ = p[0].stream.Synchronize(t.Context())
	p.closeWithUnreceived(t, p2p.Slots)
}

// TestSendWithoutMemoryHasNoEffect makes a Send fail because the GPU has not enough free memory to
// stage the message. The group must stay usable.
func TestSendWithoutMemoryHasNoEffect(t *testing.T) {
	requireSoftGPU(t, "has a configurable amount of memory")
	if !inChildProcess(t, fmt.Sprint("SOFTGPU_MEMORY=", 160<<20)) {
		return
	}

	const large = 100 << 20
	p := openPair(t, 2*time.Second)
	arena, err := p[0].device.NewArena(large)
	if err != nil {
		t.Fatal(err)
	}

	segment, err := arena.Map(0, large)
	if err != nil {
		t.Fatal(err)
	}

	err = p.message(0, driver.Send, segment.Address(), large, 0)
	var memory *driver.OutOfMemoryError
	if !errors.As(err, &memory) || memory.Requested != large {
		t.Fatalf("Send = %v, want an OutOfMemoryError for %d bytes", err, large)
	}

	if err := errors.Join(segment.Unmap(), arena.Close()); err != nil {
		t.Error(err)
	}

	runBoth(t, func(r int) error {
		o := driver.Send
		if r == 1 {
			o = driver.Recv
		}

		err := p.message(r, o, p[r].regions[0].segment.Address(), 1<<20, 0)
		return errors.Join(err, p[r].stream.Synchronize(t.Context()))
	})
	p.closeAll(t)
}

// TestMessageOutlivesTheGroupOfItsSender receives a message after the sender has closed its group.
func TestMessageOutlivesTheGroupOfItsSender(t *testing.T) {
	p := openPair(t, 10*time.Second)
	err := errors.Join(
		p[0].stream.Fill(p[0].regions[0].segment.Address(), 7, 100),
		p.message(0, driver.Send, p[0].regions[0].segment.Address(), 100, 0),
		p[0].group.Close(),
		p.message(1, driver.Recv, p[1].regions[0].segment.Address(), 100, 0))
	if err != nil {
		t.Fatal(err)
	}

	if got := p.read(t, 1, 0, 100); !bytes.Equal(got, bytes.Repeat([]byte{7}, 100)) {
		t.Errorf("received %x, want 100 bytes of 7", got)
	}

	p.closeAll(t)
}

// TestAbortEndsMessages aborts groups at different times, while the ranks send each other
// messages, both eagerly and in replays.
func TestAbortEndsMessages(t *testing.T) {
	p := openPair(t, 20*time.Second)
	for round := range 10 {
		var graphs [2]driver.Graph
		calls := func(r int) error {
			buffer := p[r].regions[0].segment.Address()
			return errors.Join(p.message(r, driver.Send, buffer, 100, 0),
				p.message(r, driver.Recv, buffer+1024, 100, 0))
		}
		runBoth(t, func(r int) error {
			if err := p.connect(t.Context(), r, fmt.Sprint("round ", round)); err != nil {
				return err
			}

			// The stream of the previous round may still return the fault of that group.
			_ = p[r].stream.Close()
			var err error
			if p[r].stream, err = p[r].device.NewStream(); err != nil {
				return err
			}

			graphs[r] = p.capture(t, r, func() error { return calls(r) })
			return nil
		})
		runBoth(t, func(r int) error {
			g := graphs[r]
			defer func() {
				if err := g.Close(); err != nil {
					t.Errorf("rank %d: closing the graph: %v", r, err)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for i := 0; ; i++ {
				if i == 5*round && r == round%2 {
					p[r].group.Abort(nil)
				}

				err := g.Launch(p[r].stream)
				if err == nil && i%2 == 0 {
					err = calls(r)
				}

				if err == nil && i%3 == 0 {
					err = p[r].stream.Synchronize(ctx)
				}

				if err != nil {
					_ = p[r].stream.Synchronize(ctx)
					if p[r].group.Cause() == nil {
						return fmt.Errorf("rank %d, call %d of round %d: error without a failure of the group: %w", r,
							i, round, err)
					}

					return ctx.Err()
				}
			}
		})
	}

	runBoth(t, func(r int) error {
		_ = p[r].stream.Close() // may return the fault of the last round
		return nil
	})
	p.closeAll(t)
}

// TestRecvTimeoutNamesASenderWithABlockedStream queues a Send behind work that blocks its stream.
// The timeout of the Recv must not start before the receiver's stream has reached the Recv.
func TestRecvTimeoutNamesASenderWithABlockedStream(t *testing.T) {
	p := openPair(t, time.Second)
	at := [2]uintptr{p[0].regions[0].segment.Address(), p[1].regions[0].segment.Address()}
	sending, receiving := make(chan struct{}), make(chan struct{})
	err := errors.Join(
		p[1].stream.Host(func() { <-sending }),
		p.message(1, driver.Send, at[1], 8, 0),
		p[0].stream.Host(func() { <-receiving }),
		p.message(0, driver.Recv, at[0], 8, 0))
	if err != nil {
		t.Fatal(err)
	}

	select {
	case <-p[0].group.Failed():
		t.Errorf("the group failed while the receiver's stream was blocked: %v", p[0].group.Cause())
	case <-time.After(1500 * time.Millisecond):
	}

	close(receiving)
	checkTimeoutOfRank1(t, p[0].stream.Synchronize(t.Context()))
	close(sending)
	_ = p[1].stream.Synchronize(t.Context())
	p.closeAll(t)
}

// TestMessagesOfAnySizeAndOffset sends messages from and to odd addresses. The memory around them
// must not change.
func TestMessagesOfAnySizeAndOffset(t *testing.T) {
	const maxSize = 300_000
	p := openPair(t, 20*time.Second)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	sent := make([]byte, maxSize)
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}

	source, target := p[0].regions[0].segment.Address(), p[1].regions[0].segment.Address()
	if err := p[0].stream.Copy(source, dl.AddressOf(&sent[0]), maxSize); err != nil {
		t.Fatal(err)
	}

	for range 60 {
		sendOffset, recvOffset, size := random.IntN(40), random.IntN(40), random.IntN(100)
		if random.IntN(3) == 0 {
			size = random.IntN(maxSize - 40)
		}

		err := errors.Join(
			p[1].stream.Fill(target, 0xa5, int64(size)+80),
			p.message(0, driver.Send, source+uintptr(sendOffset), int64(size), 0),
			p.message(1, driver.Recv, target+uintptr(recvOffset), int64(size), 0))
		if err != nil {
			t.Fatal(err)
		}

		want := bytes.Repeat([]byte{0xa5}, size+80)
		copy(want[recvOffset:], sent[sendOffset:sendOffset+size])
		if got := p.read(t, 1, 0, size+80); !bytes.Equal(got, want) {
			t.Fatalf("a message of %d bytes from offset %d to %d: the buffer has the wrong contents", size,
				sendOffset, recvOffset)
		}
	}

	p.closeAll(t)
}
