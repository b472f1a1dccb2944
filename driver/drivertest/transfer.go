package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

var transferRequirements = []requirement{
	{"messages of every size arrive intact and in order", testTransferSizes},
	{"two ranks can send to each other at the same time on two streams", testBothDirections},
	{"messages travel around a ring", testRing},
}

// message describes one end of a message: a Send or a Recv.
type message struct {
	peer   int // rank at the other end
	tag    int
	offset int64 // in bytes, in the buffer
	bytes  int64
}

func (m message) call() driver.Call {
	return driver.Call{
		DataType: driver.Uint8, Count: m.bytes, Root: m.peer, Tag: m.tag, Digest: commonDigest,
	}
}

// send returns a Send from b.
func (m message) send(b buffer) driver.Call {
	c := m.call()
	c.Operation = driver.Send
	c.Send = b.addressAt(m.offset)
	return c
}

// recv returns a Recv to b.
func (m message) recv(b buffer) driver.Call {
	c := m.call()
	c.Operation = driver.Recv
	c.Recv = b.addressAt(m.offset)
	return c
}

// messageSizes includes sizes around those at which a backend may split a message.
var messageSizes = []int64{1, 0, 48, 49, 8 << 10, 64 << 10, 64<<10 + 1, 5, 3<<20 + 7, 1}

func testTransferSizes(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 4<<20, options{checkCalls: true})
	for i, bytes := range messageSizes {
		data := input(h, driver.Uint8, i, bytes)
		sender := i % 2
		receiver := 1 - sender
		bw.onEachRank(func(r *rank) {
			r.setStep("%d bytes from rank %d", bytes, sender)
			if r.number == sender {
				send := bw.send[sender]
				r.write(send.addressAt(0), data)
				call := message{peer: receiver, bytes: bytes}.send(send)
				r.must(r.launchAndWait(r.group, r.stream, call))
				return
			}

			recv := bw.recv[receiver]
			r.must(r.stream.Fill(recv.addressAt(0), canary, bytes+canaryCount))
			call := message{peer: sender, bytes: bytes}.recv(recv)
			r.must(r.launchAndWait(r.group, r.stream, call))
			r.expectBytes(recv.addressAt(0), data)
			r.expectFilled(recv.addressAt(bytes), canary, canaryCount)
		})
	}
}

func testBothDirections(t *testing.T, h Harness) {
	for _, bytes := range []int64{4, 64<<10 + 1, 2<<20 + 1} {
		bw := newBufferWorld(t, h, 2, 4<<20, options{checkCalls: true})
		sendAround(bw, bytes, onTwoStreams)
	}
}

func testRing(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 4, 1<<20, options{checkCalls: true})
	sendAround(bw, 200<<10, onTwoStreams)
}

type streamUse int

const (
	onOneStream  streamUse = iota // each rank sends and receives on the same stream
	onTwoStreams                  // each rank sends and receives on different streams
)

// sendAround makes every rank send to the next rank and receive from the previous one several
// times.
func sendAround(bw *bufferWorld, bytes int64, use streamUse) {
	bw.t.Helper()
	n := len(bw.ranks)
	bw.onEachRank(func(r *rank) {
		next := (r.number + 1) % n
		previous := (r.number + n - 1) % n
		send, recv := bw.send[r.number], bw.recv[r.number]
		sendCall := message{peer: next, bytes: bytes}.send(send)
		recvCall := message{peer: previous, bytes: bytes}.recv(recv)
		recvStream := r.stream
		if use == onTwoStreams {
			recvStream = r.newStream()
		}

		for round := range 4 {
			r.setStep("round %d of %d bytes", round, bytes)
			data := input(bw.harness, driver.Uint8, n*round+r.number, bytes)
			want := input(bw.harness, driver.Uint8, n*round+previous, bytes)
			r.write(send.addressAt(0), data)
			r.must(r.queueCall(r.group, r.stream, sendCall))
			r.must(r.launchAndWait(r.group, recvStream, recvCall))
			r.must(r.stream.Synchronize(bw.ctx)) // waits for the Send
			r.expectBytes(recv.addressAt(0), want)
		}
	})
}

// testRandomMessages makes each rank queue its Sends and Recvs in the order of a random list.
func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	const n, streamCount = 3, 3
	for round := range 3 {
		messages := make([]randomMessage, 60)
		for i := range messages {
			messages[i] = drawMessage(random, n, streamCount, i)
		}

		bw := newBufferWorld(t, h, n, 8<<20, options{checkCalls: round%2 == 0})
		succeeded := bw.tryOnEachRank(func(r *rank) {
			sendAndReceiveAll(bw, r, messages, streamCount)
		})
		if !succeeded {
			t.Fatalf("the messages of seed %d failed in round %d", seed, round)
		}
	}
}

// randomMessage is a message between two ranks, on random streams.
type randomMessage struct {
	index                  int // in the list of messages
	src, dst               int // ranks
	tag                    int
	offset, bytes          int64 // the same in both ranks' buffers
	sendStream, recvStream int   // indexes of streams on src and on dst
}

// drawMessage draws a message between two of n ranks.
func drawMessage(random *rand.Rand, n, streamCount, index int) randomMessage {
	const slotBytes = 64 << 10 // longer than each message
	m := randomMessage{
		index: index, src: random.IntN(n), tag: random.IntN(3), offset: int64(index) * slotBytes,
		sendStream: random.IntN(streamCount), recvStream: random.IntN(streamCount),
	}
	m.dst = (m.src + 1 + random.IntN(n-1)) % n // never m.src
	m.bytes = random.Int64N(2000)
	if random.IntN(6) == 0 {
		m.bytes = random.Int64N(60 << 10)
	}

	return m
}

func (m *randomMessage) contents(h Harness) []byte {
	return input(h, driver.Uint8, m.index, m.bytes)
}

// endWith returns one end of m, given the rank at the other end.
func (m *randomMessage) endWith(peer int) message {
	return message{peer: peer, tag: m.tag, offset: m.offset, bytes: m.bytes}
}

// sendAndReceiveAll sends and receives this rank's messages, and checks the contents.
func sendAndReceiveAll(bw *bufferWorld, r *rank, messages []randomMessage, streamCount int) {
	send, recv := bw.send[r.number], bw.recv[r.number]
	streams := []driver.Stream{r.stream}
	for range streamCount - 1 {
		streams = append(streams, r.newStream())
	}

	for _, m := range messages {
		if m.src == r.number {
			r.write(send.addressAt(m.offset), m.contents(bw.harness))
		}
	}

	queueMessages(bw, r, messages, streams)
	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}

	for _, m := range messages {
		if m.dst == r.number {
			r.setStep("message %d from rank %d to rank %d", m.index, m.src, m.dst)
			r.expectBytes(recv.addressAt(m.offset), m.contents(bw.harness))
		}
	}
}

// queueMessages queues this rank's Sends and Recvs in the order of the list.
func queueMessages(
	bw *bufferWorld, r *rank, messages []randomMessage, streams []driver.Stream,
) {
	for _, m := range messages {
		var s driver.Stream
		var call driver.Call
		switch r.number {
		case m.src:
			s = streams[m.sendStream]
			call = m.endWith(m.dst).send(bw.send[r.number])
		case m.dst:
			s = streams[m.recvStream]
			call = m.endWith(m.src).recv(bw.recv[r.number])
		default:
			continue
		}

		call.Digest = uint64(m.index) // the same at both ends
		r.must(r.queueCall(r.group, s, call))
	}
}
