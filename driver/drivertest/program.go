package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

// testRandomMessages draws a list of random messages between three ranks. Each message has random
// streams of the sender and of the receiver. All messages must arrive if each rank queues its Sends
// and Recvs in the order of the list.

const slotBytes = 64 << 10 // distance between successive messages in a buffer

type randomMessage struct {
	src, dst               int // ranks
	tag                    int
	offset, bytes          int64 // the same in both ranks' buffers
	sendStream, recvStream int   // indexes in the streams of src and dst
	contentSeed            int
}

// drawMessage draws the message at an index of the list, between two of n ranks.
func drawMessage(random *rand.Rand, n, streamCount, index int) randomMessage {
	m := randomMessage{
		src: random.IntN(n), tag: random.IntN(3), offset: int64(index) * slotBytes,
		sendStream: random.IntN(streamCount), recvStream: random.IntN(streamCount), contentSeed: index,
	}
	m.dst = (m.src + 1 + random.IntN(n-1)) % n // never m.src
	m.bytes = random.Int64N(2000)
	if random.IntN(6) == 0 { // some messages are longer
		m.bytes = random.Int64N(60 << 10) // less than slotBytes
	}

	return m
}

func (m *randomMessage) contents(h Harness) []byte {
	return input(h, driver.Uint8, m.contentSeed, m.bytes)
}

func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	const n, streamCount = 3, 3
	for round := range 3 {
		messages := make([]randomMessage, 60)
		for i := range messages {
			messages[i] = drawMessage(random, n, streamCount, i)
		}

		checkCalls := round != 1 // cover groups with and without checks
		bw := newBufferWorld(t, h, n, 8<<20, options{checkCalls: checkCalls})
		succeeded := bw.tryOnEachRank(func(r *rank) {
			sendAndReceiveAll(bw, r, messages, streamCount)
		})
		if !succeeded {
			t.Fatalf("messages of seed %d, round %d", seed, round)
		}
	}
}

// sendAndReceiveAll sends and receives this rank's messages, and checks the received contents.
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

// queueMessages queues this rank's Sends and Recvs in the order of the list.
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
