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
	{"in strict groups a forgotten Send or Recv is detected at the next collective", testOmittedCall},
	{"in strict groups a Recv does not wait for a missing Send", testMissingSend},
	{"in strict groups a message cannot cross a collective", testOutOfStep},
	{"in other groups a message can cross a collective", testNonStrict},
	{"captured messages are numbered when the graph is launched", testCapturedMessages},
	{"random messages on random streams arrive in the right buffers", testRandomMessages},
}

// messageCall returns a Send or Recv at an offset in b.
func messageCall(o driver.Operation, peer, tag int, b buffer, offset, bytes int64) driver.Call {
	c := driver.Call{
		Operation: o, DataType: driver.Uint8, Count: bytes, Root: peer, Tag: tag, Digest: 77,
	}
	if o == driver.Send {
		c.Send = b.addressAt(offset)
	} else {
		c.Recv = b.addressAt(offset)
	}
	return c
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

func (bw *bufferWorld) checkCallOrder(r *rank, late int, sizes [2]int64) {
	streams := [2]driver.Stream{r.stream, r.newStream()}
	o, buf := driver.Send, bw.send[r.number]
	if r.number == 1 {
		o, buf = driver.Recv, bw.recv[r.number]
	}
	for i, bytes := range sizes {
		r.write(buf.addressAt(int64(i)<<22), input(bw.harness, driver.Uint8, i, bytes))
		if r.number == 1 {
			r.must(r.stream.Fill(buf.addressAt(int64(i)<<22), canary, bytes))
		}
	}
	r.must(r.stream.Synchronize(bw.ctx))
	unblock := func() {}
	if r.number == late {
		unblock = r.blockStream(r.stream).open
	}
	for i, bytes := range sizes {
		call := messageCall(o, 1-r.number, 0, buf, int64(i)<<22, bytes)
		call.Digest = uint64(bytes)
		r.must(r.queueCall(r.group, streams[i], call))
	}
	unblock()
	for i, bytes := range sizes {
		r.must(streams[i].Synchronize(bw.ctx))
		if r.number == 1 {
			r.setStep("message %d", i)
			r.expectBytes(buf.addressAt(int64(i)<<22), input(bw.harness, driver.Uint8, i, bytes))
		}
	}
}

func testSwap(t *testing.T, h Harness) {
	for _, bytes := range []int64{1, 1 << 20, 9<<20 + 1} {
		for _, n := range []int{2, 3} {
			newBufferWorld(t, h, n, 10<<20, options{checkCalls: true}).sendAround(bytes, 1)
		}
	}
}

// sendAround makes every rank send to the next rank and receive from the previous one several
// times, on a single stream or on one stream per direction.
func (bw *bufferWorld) sendAround(bytes int64, streams int) {
	bw.t.Helper()
	n := len(bw.ranks)
	bw.onEachRank(func(r *rank) {
		next, previous := (r.number+1)%n, (r.number+n-1)%n
		send, recv, other := bw.send[r.number], bw.recv[r.number], r.stream
		if streams > 1 {
			other = r.newStream()
		}
		for round := range 4 {
			r.setStep("round %d of %d bytes", round, bytes)
			r.write(send.addressAt(0), input(bw.harness, driver.Uint8, r.number+n*round, bytes))
			r.must(r.queueCall(r.group, r.stream, messageCall(driver.Send, next, 0, send, 0,
				bytes)))
			r.must(r.launchAndWait(r.group, other, messageCall(driver.Recv, previous, 0, recv, 0,
				bytes)))
			r.must(r.stream.Synchronize(bw.ctx))
			r.expectBytes(recv.addressAt(0), input(bw.harness, driver.Uint8, previous+n*round,
				bytes))
		}
	})
}

func testSizes(t *testing.T, h Harness) {
	for _, sizes := range [][2]int64{{100, 99}, {99, 100}, {0, 1}, {1 << 20, 1}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			bw := newBufferWorld(t, h, 2, 2<<20, options{allowFaults: true})
			recv := bw.recv[1]
			must(t, bw.ranks[1].stream.Fill(recv.addressAt(0), canary, 2<<20))
			errs := bw.errorsByRank(func(r *rank) error {
				if r.number == 0 {
					call := messageCall(driver.Send, 1, 5, bw.send[0], 0, sizes[0])
					if err := r.launchAndWait(r.group, r.stream, call); err != nil {
						return err
					}
					return r.launchAndWait(r.group, r.stream,
						driver.Call{Operation: driver.Barrier})
				}
				return r.launchAndWait(r.group, r.stream, messageCall(driver.Recv, 0, 5, recv, 0,
					sizes[1]))
			})
			checkMessageEnds(t, errs[1], driver.MessagesDiffer, driver.MessageEnds{
				From: 0, To: 1, Tag: 5, Number: 1, Sent: uint64(sizes[0]), Received: uint64(sizes[1]),
			})
			if errs[0] == nil {
				t.Error("the sender succeeded, want an error")
			}
			bw.ranks[1].expectFilled(recv.addressAt(0), canary, 2<<20)
		})
	}
}

func checkMessageEnds(
	t *testing.T, err error, fault driver.MessageFault, ends ...driver.MessageEnds,
) {
	t.Helper()
	e, ok := errors.AsType[*driver.MessageError](err)
	if !ok || e.Fault != fault || !slices.Equal(e.Ends, ends) {
		t.Errorf("got %v, want %v", err, &driver.MessageError{Fault: fault, Ends: ends})
	}
}

// firstMessageError returns the first MessageError in errs or, if there is none, all errors.
func firstMessageError(errs []error) error {
	for _, err := range errs {
		if errors.As(err, new(*driver.MessageError)) {
			return err
		}
	}
	return errors.Join(errs...)
}

// expectUntouched checks that a rank has received nothing. It reads the buffer on a new stream,
// because the stream of the message may have failed.
func (bw *bufferWorld) expectUntouched(number int) {
	r := *bw.ranks[number]
	r.stream = bw.ranks[number].newStream()
	r.expectFilled(bw.recv[number].addressAt(0), canary, 256)
}

func testTags(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 8<<20, options{checkCalls: true})
	tags := []int{0, 7, driver.MaxTag}
	for _, bytes := range []int64{10, 500 << 10} {
		bw.onEachRank(func(r *rank) {
			for i, tag := range tags {
				offset := int64(i) << 20
				if r.number == 0 {
					data := input(h, driver.Uint8, i, bytes)
					r.write(bw.send[0].addressAt(offset), data)
					call := messageCall(driver.Send, 1, tag, bw.send[0], offset, bytes)
					r.must(r.queueCall(r.group, r.stream, call))
				}
			}
			for i, tag := range slices.Backward(tags) {
				offset := int64(i) << 20
				if r.number == 0 {
					continue
				}
				call := messageCall(driver.Recv, 0, tag, bw.recv[1], offset, bytes)
				r.setStep("tag %d", tag)
				r.must(r.launchAndWait(r.group, r.stream, call))
				r.expectBytes(bw.recv[1].addressAt(offset), input(h, driver.Uint8, i, bytes))
			}
			r.must(r.stream.Synchronize(bw.ctx))
		})
	}
}

// testAnySource makes rank 0 receive messages, some from a specific rank and some from any source.
// Some Recvs are on a stream that is blocked until all Recvs have been queued.
func testAnySource(t *testing.T, h Harness) {
	const n, each = 4, 5
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) {
		if r.number > 0 {
			bw.sendNumbers(r, each)
		} else {
			bw.receiveNumbers(r, (n-1)*each)
		}
	})
}

// sendNumbers sends messages of two bytes, the sender's rank and the number of the message, to rank
// 0.
func (bw *bufferWorld) sendNumbers(r *rank, messages int) {
	send := bw.send[r.number]
	for i := range messages {
		offset := int64(2 * i)
		r.write(send.addressAt(offset), []byte{byte(r.number), byte(i)})
		r.must(r.launchAndWait(r.group, r.stream, messageCall(driver.Send, 0, 9, send, offset, 2)))
	}
}

// receiveNumbers receives the other ranks' messages. The first two Recvs are from rank 1, the rest
// from any source.
func (bw *bufferWorld) receiveNumbers(r *rank, messages int) {
	sources, roots, recv := make([]int, messages), make([]int, messages), bw.recv[0]
	streams := []driver.Stream{r.stream, r.newStream(), r.newStream()}
	gate := r.blockStream(streams[1])
	for i := range messages {
		roots[i] = driver.AnySource
		if i < 2 {
			roots[i] = 1
		}
		call := messageCall(driver.Recv, roots[i], 9, recv, int64(2*i), 2)
		call.Arrived = func(source int) { sources[i] = source }
		r.must(r.queueCall(r.group, streams[i%3], call))
	}
	gate.open()
	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}
	got := r.read(recv.addressAt(0), int64(2*messages))
	next := make([]byte, len(bw.ranks))
	for i := range messages {
		source, number := got[2*i], got[2*i+1]
		if int(source) != sources[i] || roots[i] >= 0 && int(source) != roots[i] {
			r.failf("message %d from rank %d: Recv from rank %d reported rank %d", i, source, roots[i],
				sources[i])
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
	blocked := bw.ranks[1]
	gate := blocked.blockStream(blocked.stream)
	call := messageCall(driver.Send, 0, 3, bw.send[1], 0, 4)
	must(t, blocked.queueCall(blocked.group, blocked.stream, call))
	other := bw.ranks[2]
	must(t, other.launchAndWait(other.group, other.stream, messageCall(driver.Send, 0, 3,
		bw.send[2], 0, 4)))
	for _, want := range []int{2, 1} {
		source, r := -1, bw.ranks[0]
		call := messageCall(driver.Recv, driver.AnySource, 3, bw.recv[0], 0, 4)
		call.Arrived = func(rank int) { source = rank }
		must(t, r.launchAndWait(r.group, r.stream, call))
		if source != want {
			t.Errorf("received a message from rank %d, want %d", source, want)
		}
		gate.open()
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
					ID: "unmatched", Ranks: firstNumbers(2), Rank: r.number,
				})
				r.must(err)
			})
			sender := bw.ranks[0]
			call := messageCall(driver.Send, 1, 3, bw.send[0], 0, 10)
			must(t, sender.launchAndWait(groups[0], sender.stream, call))
			closed := [2]error{}
			for _, r := range []int{first, 1 - first} {
				closed[r] = groups[r].Close()
			}
			checkMessageEnds(t, closed[1], driver.MessagesUnmatched, driver.MessageEnds{
				From: 0, To: 1, Tag: 3, Number: 1, Sent: 1,
			})
			must(t, closed[0])
		})
	}
}

func testCapturedMessages(t *testing.T, h Harness) {
	const rounds = 20
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true, isStrict: true})
	bw.onEachRank(func(r *rank) {
		o, buf := driver.Send, bw.send[0]
		if r.number == 1 {
			o, buf = driver.Recv, bw.recv[1]
		}
		call := messageCall(o, 1-r.number, 0, buf, 0, 4)
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
