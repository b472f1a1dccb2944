package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

var messageRequirements = []requirement{
	{"messages match in the order of the calls, on any streams", testCallOrder},
	{"ranks that all send before they receive do not deadlock", testSwap},
	{"a Recv refuses a message of a different size", testSizes},
	{"messages with different tags do not match", testTags},
	{"a Recv from any source accepts all ranks' messages and reports the source", testAnySource},
	{"a Recv from any source does not wait for a blocked Send", testAnySourceOrder},
	{"closing a group with unmatched messages returns an error", testUnmatchedClose},
	{"captured messages are numbered when the graph is launched", testCapturedMessages},
	{"random messages on random streams arrive in the right buffers", testRandomMessages},
}

// testCallOrder sends two messages on two streams. On the late rank, the stream of the first
// message is blocked until both messages are queued.
func testCallOrder(t *testing.T, h Harness) {
	for late := range 2 {
		for _, sizes := range [][2]int64{{1000, 1000}, {1000, 500}, {3 << 20, 100}} {
			bw := newBufferWorld(t, h, 2, 8<<20, options{checkCalls: true})
			bw.onEachRank(func(r *rank) { bw.checkCallOrder(r, late, sizes) })
		}
	}
}

// checkCallOrder sends messages of the given sizes from rank 0 to rank 1.
func (bw *bufferWorld) checkCallOrder(r *rank, late int, sizes [2]int64) {
	const slotBytes = 4 << 20 // more than each message
	isReceiver := r.number == 1
	buf := bw.send[r.number]
	if isReceiver {
		buf = bw.recv[r.number]
	}

	for i, bytes := range sizes {
		address := buf.addressAt(int64(i) * slotBytes)
		if isReceiver {
			r.must(r.stream.Fill(address, canary, bytes))
		} else {
			r.write(address, input(bw.harness, driver.Uint8, i, bytes))
		}
	}

	r.must(r.stream.Synchronize(bw.ctx))
	streams := [2]driver.Stream{r.stream, r.newStream()}
	unblock := func() {}
	if r.number == late {
		unblock = r.blockStream(r.stream).open
	}

	for i, bytes := range sizes {
		m := message{peer: 1 - r.number, offset: int64(i) * slotBytes, bytes: bytes}
		call := m.send(buf)
		if isReceiver {
			call = m.recv(buf)
		}

		call.Digest = uint64(bytes)
		r.must(r.queueCall(r.group, streams[i], call))
	}

	unblock()
	for i, bytes := range sizes {
		r.must(streams[i].Synchronize(bw.ctx))
		if isReceiver {
			r.setStep("message %d", i)
			want := input(bw.harness, driver.Uint8, i, bytes)
			r.expectBytes(buf.addressAt(int64(i)*slotBytes), want)
		}
	}
}

func testSwap(t *testing.T, h Harness) {
	for _, bytes := range []int64{1, 1 << 20, 9<<20 + 1} {
		for _, n := range []int{2, 3} {
			bw := newBufferWorld(t, h, n, 10<<20, options{checkCalls: true})
			sendAround(bw, bytes, onOneStream)
		}
	}
}

// testSizes makes rank 1 expect another size than rank 0 sends. The mistake makes the group fail,
// so a later barrier of the sender fails as well.
func testSizes(t *testing.T, h Harness) {
	const tag, bufferBytes = 5, 2 << 20
	for _, sizes := range [][2]int64{{100, 99}, {99, 100}, {0, 1}, {1 << 20, 1}} {
		sent, expected := sizes[0], sizes[1]
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			bw := newBufferWorld(t, h, 2, bufferBytes, options{ignoreCloseErrors: true})
			recv := bw.recv[1]
			must(t, bw.ranks[1].stream.Fill(recv.addressAt(0), canary, bufferBytes))
			errs := bw.errorsByRank(func(r *rank) error {
				if r.number == 1 {
					call := message{peer: 0, tag: tag, bytes: expected}.recv(recv)
					return r.launchAndWait(r.group, r.stream, call)
				}

				call := message{peer: 1, tag: tag, bytes: sent}.send(bw.send[0])
				if err := r.launchAndWait(r.group, r.stream, call); err != nil {
					return err
				}

				return r.launchAndWait(r.group, r.stream, barrier)
			})
			checkMessageEnds(t, errs[1], driver.MessagesDiffer, driver.MessageEnds{
				From: 0, To: 1, Tag: tag, Number: 1, Sent: uint64(sent), Received: uint64(expected),
			})
			if errs[0] == nil {
				t.Error("the sender succeeded, want an error")
			}

			bw.ranks[1].expectFilled(recv.addressAt(0), canary, bufferBytes)
		})
	}
}

// checkMessageEnds checks that err is a MessageError with the given kind and ends.
func checkMessageEnds(
	t *testing.T, err error, fault driver.MessageFault, ends ...driver.MessageEnds,
) {
	t.Helper()
	e, ok := errors.AsType[*driver.MessageError](err)
	if !ok || e.Fault != fault || !slices.Equal(e.Ends, ends) {
		t.Errorf("got %v, want %v", err, &driver.MessageError{Fault: fault, Ends: ends})
	}
}

// firstMessageError returns the first MessageError in errs. Without one, it returns all errors.
func firstMessageError(errs []error) error {
	var messageErr *driver.MessageError
	for _, err := range errs {
		if errors.As(err, &messageErr) {
			return err
		}
	}

	return errors.Join(errs...)
}

// expectUntouched checks that a rank has received nothing: its buffer still has canaries.
func (bw *bufferWorld) expectUntouched(number int) {
	r := *bw.ranks[number]
	r.stream = bw.ranks[number].newStream() // the stream of the message may have failed
	r.expectFilled(bw.recv[number].addressAt(0), canary, 256)
}

// testTags receives messages in the opposite of the order in which they are sent.
func testTags(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 8<<20, options{checkCalls: true})
	tags := []int{0, 7, driver.MaxTag}
	const slotBytes = 1 << 20 // more than each message
	for _, bytes := range []int64{10, 500 << 10} {
		sendAll := func(r *rank) {
			for i, tag := range tags {
				m := message{peer: 1, tag: tag, offset: int64(i) * slotBytes, bytes: bytes}
				r.write(bw.send[0].addressAt(m.offset), input(h, driver.Uint8, i, bytes))
				r.must(r.queueCall(r.group, r.stream, m.send(bw.send[0])))
			}

			r.must(r.stream.Synchronize(bw.ctx))
		}
		receiveAll := func(r *rank) {
			for i, tag := range slices.Backward(tags) {
				m := message{peer: 0, tag: tag, offset: int64(i) * slotBytes, bytes: bytes}
				r.setStep("tag %d", tag)
				r.must(r.launchAndWait(r.group, r.stream, m.recv(bw.recv[1])))
				r.expectBytes(bw.recv[1].addressAt(m.offset), input(h, driver.Uint8, i, bytes))
			}
		}
		bw.onEachRank(func(r *rank) {
			if r.number == 0 {
				sendAll(r)
			} else {
				receiveAll(r)
			}
		})
	}
}

// testAnySource makes rank 0 receive messages, some from a specific rank and some from any source.
// Some Recvs are on a stream that is blocked until all Recvs have been queued.
func testAnySource(t *testing.T, h Harness) {
	const n, messagesPerRank = 4, 5
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) {
		if r.number > 0 {
			bw.sendNumbers(r, messagesPerRank)
		} else {
			bw.receiveNumbers(r, (n-1)*messagesPerRank)
		}
	})
}

// numbersMessage describes the i-th message on a rank in testAnySource. The two bytes of a message
// are the sender's rank, and the number of the message on that rank.
func numbersMessage(peer, i int) message {
	const tag, bytes = 9, 2
	return message{peer: peer, tag: tag, offset: int64(i) * bytes, bytes: bytes}
}

// sendNumbers sends messages to rank 0.
func (bw *bufferWorld) sendNumbers(r *rank, messages int) {
	send := bw.send[r.number]
	for i := range messages {
		m := numbersMessage(0, i)
		r.write(send.addressAt(m.offset), []byte{byte(r.number), byte(i)})
		r.must(r.launchAndWait(r.group, r.stream, m.send(send)))
	}
}

// receiveNumbers receives the other ranks' messages. The first two Recvs are from rank 1, the rest
// from any source.
func (bw *bufferWorld) receiveNumbers(r *rank, messages int) {
	recv := bw.recv[0]
	peers := make([]int, messages)           // arguments of the Recvs
	reportedSources := make([]int, messages) // arguments of Arrived
	streams := []driver.Stream{r.stream, r.newStream(), r.newStream()}
	gate := r.blockStream(streams[1])
	for i := range messages {
		peers[i] = driver.AnySource
		if i < 2 {
			peers[i] = 1
		}

		call := numbersMessage(peers[i], i).recv(recv)
		call.Arrived = func(source int) { reportedSources[i] = source }
		r.must(r.queueCall(r.group, streams[i%len(streams)], call))
	}

	gate.open()
	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}

	got := r.read(recv.addressAt(0), int64(2*messages))
	next := make([]byte, len(bw.ranks)) // number of each rank's next message
	for i := range messages {
		source, number := got[2*i], got[2*i+1]
		isFromPeer := peers[i] == driver.AnySource || peers[i] == int(source)
		if int(source) != reportedSources[i] || !isFromPeer {
			r.failf("message %d from rank %d: Recv from rank %d reported rank %d", i, source, peers[i],
				reportedSources[i])
		}

		if number != next[source] {
			r.failf("message %d is number %d from rank %d, want number %d", i, number, source,
				next[source])
		}

		next[source]++
	}
}

// testAnySourceOrder makes rank 1 send first, but on a stream that is blocked until rank 0 has
// received the message from rank 2.
func testAnySourceOrder(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 3, 1<<20, options{checkCalls: true})
	const tag, bytes = 3, 4
	m := message{peer: 0, tag: tag, bytes: bytes}
	blocked := bw.ranks[1]
	gate := blocked.blockStream(blocked.stream)
	must(t, blocked.queueCall(blocked.group, blocked.stream, m.send(bw.send[1])))
	other := bw.ranks[2]
	must(t, other.launchAndWait(other.group, other.stream, m.send(bw.send[2])))
	receiver := bw.ranks[0]
	for _, want := range []int{2, 1} {
		source := -1
		call := message{peer: driver.AnySource, tag: tag, bytes: bytes}.recv(bw.recv[0])
		call.Arrived = func(rank int) { source = rank }
		must(t, receiver.launchAndWait(receiver.group, receiver.stream, call))
		if source != want {
			t.Errorf("received a message from rank %d, want %d", source, want)
		}

		gate.open() // after the first message; a second call has no effect
	}
}

// testUnmatchedClose closes a group in which a message was not received. In each subtest, a
// different rank closes first.
func testUnmatchedClose(t *testing.T, h Harness) {
	for first := range 2 {
		t.Run(fmt.Sprint("rank ", first, " first"), func(t *testing.T) {
			bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
			groups := make([]driver.Communicator, 2)
			bw.onEachRank(func(r *rank) {
				var err error
				groups[r.number], err = r.device.Connect(bw.ctx, driver.GroupConfig{
					ID: "unmatched", Ranks: []int{0, 1}, Rank: r.number,
				})
				r.must(err)
			})
			sender := bw.ranks[0]
			const tag = 3
			call := message{peer: 1, tag: tag, bytes: 10}.send(bw.send[0])
			must(t, sender.launchAndWait(groups[0], sender.stream, call))
			var closeErrs [2]error
			for _, r := range []int{first, 1 - first} {
				closeErrs[r] = groups[r].Close()
			}

			// Only the receiver returns an error.
			checkMessageEnds(t, closeErrs[1], driver.MessagesUnmatched, driver.MessageEnds{
				From: 0, To: 1, Tag: tag, Number: 1, Sent: 1,
			})
			must(t, closeErrs[0])
		})
	}
}

// testCapturedMessages mixes messages of a graph with other messages. A message that was numbered
// in the capture would match the wrong message on the other rank.
func testCapturedMessages(t *testing.T, h Harness) {
	const rounds = 20
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true, isStrict: true})
	bw.onEachRank(func(r *rank) {
		buf := bw.send[0]
		call := message{peer: 1, bytes: 4}.send(buf)
		if r.number == 1 {
			buf = bw.recv[1]
			call = message{peer: 0, bytes: 4}.recv(buf)
		}

		g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
		for round := range rounds {
			r.setStep("round %d", round)
			data := []byte{byte(round), 1, 2, 3}
			if r.number == 0 {
				r.write(buf.addressAt(0), data)
			}

			if round%3 == 0 {
				r.must(g.Launch(r.stream))
			} else {
				r.must(r.queueCall(r.group, r.stream, call))
			}

			r.must(r.stream.Synchronize(bw.ctx))
			if r.number == 1 {
				r.expectBytes(buf.addressAt(0), data)
			}
		}
	})
}
