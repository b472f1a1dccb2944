package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

// The test in this file draws a list of random messages between three ranks. For example, message 5
// is from rank 0 to rank 2. Rank 0 sends it on one of its three streams, and rank 2 receives it on
// one of its three streams. Each rank makes its calls in the order of the list. All messages must
// arrive, whatever the streams are.
//
// Each rank has a send buffer and a receive buffer of 8 MiB. Message 5 is at the same place in
// both: in slot 5, a part of 64 KiB.

const slotBytes = 64 << 10 // size of a slot

// randomMessage is a message of the list.
type randomMessage struct {
	src, dst               int // ranks
	tag                    int
	offset, bytes          int64 // in the buffers of both ranks
	sendStream, recvStream int   // indexes in the streams of src and dst
	seed                   int   // of the contents
}

// drawMessage draws a message between two of n ranks. index is its index in the list, and the
// number of its slot.
func drawMessage(random *rand.Rand, n, streamCount, index int) randomMessage {
	m := randomMessage{
		src: random.IntN(n), tag: random.IntN(3), offset: int64(index) * slotBytes,
		sendStream: random.IntN(streamCount), recvStream: random.IntN(streamCount), seed: index,
	}
	m.dst = (m.src + 1 + random.IntN(n-1)) % n // never m.src
	m.bytes = random.Int64N(2000)
	if random.IntN(6) == 0 { // some messages are longer
		m.bytes = random.Int64N(60 << 10) // less than slotBytes
	}

	return m
}

// contents returns the data of the message.
func (m *randomMessage) contents(h Harness) []byte {
	return input(h, driver.Uint8, m.seed, m.bytes)
}

// testRandomMessages draws three lists of messages, and sends the messages of each list.
func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	const n, streamCount = 3, 3
	for round := range 3 {
		messages := make([]randomMessage, 60)
		for i := range messages {
			messages[i] = drawMessage(random, n, streamCount, i)
		}

		checkCalls := round != 1 // in two of the rounds, the ranks compare their calls
		bw := newBufferWorld(t, h, n, 8<<20, options{checkCalls: checkCalls})
		succeeded := bw.tryOnEachRank(func(r *rank) {
			sendAndReceiveAll(bw, r, messages, streamCount)
		})
		if !succeeded {
			t.Fatalf("messages of seed %d, round %d", seed, round)
		}
	}
}

// sendAndReceiveAll makes this rank's calls, and checks the messages that it has received.
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

	for i, m := range messages {
		if m.dst == r.number {
			r.setStep("message %d from rank %d to rank %d", i, m.src, m.dst)
			r.expectBytes(recv.addressAt(m.offset), m.contents(bw.harness))
		}
	}
}

// queueMessages queues the Sends and Recvs of this rank.
func queueMessages(
	bw *bufferWorld, r *rank, messages []randomMessage, streams []driver.Stream,
) {
	for i, m := range messages {
		var s driver.Stream
		var call driver.Call
		switch r.number {
		case m.src:
			s = streams[m.sendStream]
			sent := message{peer: m.dst, tag: m.tag, offset: m.offset, bytes: m.bytes}
			call = sent.send(bw.send[r.number])
		case m.dst:
			s = streams[m.recvStream]
			received := message{peer: m.src, tag: m.tag, offset: m.offset, bytes: m.bytes}
			call = received.recv(bw.recv[r.number])
		default: // the message is between other ranks
			continue
		}

		call.Digest = uint64(i) // the same at both ends
		r.must(r.queueCall(r.group, s, call))
	}
}
