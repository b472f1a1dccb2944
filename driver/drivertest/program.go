package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

// randomMessage is a message of testRandomMessages.
type randomMessage struct {
	src, dst               int // ranks
	tag                    int
	offset, bytes          int64 // in the buffers of both ranks
	sendStream, recvStream int   // indexes in the streams of src and dst
	seed                   int   // of the contents
}

// slotBytes is the size of the part of a buffer that each message of testRandomMessages uses.
const slotBytes = 64 << 10

// drawMessage draws a message between two of n ranks. All messages have different indexes.
func drawMessage(random *rand.Rand, n, streamCount, index int) randomMessage {
	m := randomMessage{
		src: random.IntN(n), tag: random.IntN(3), offset: int64(index) * slotBytes,
		sendStream: random.IntN(streamCount), recvStream: random.IntN(streamCount), seed: index,
	}
	m.dst = (m.src + 1 + random.IntN(n-1)) % n // never m.src
	m.bytes = random.Int64N(2000)
	if random.IntN(6) == 0 {
		m.bytes = random.Int64N(60 << 10) // less than slotBytes
	}

	return m
}

func (m *randomMessage) contents(h Harness) []byte {
	return input(h, driver.Uint8, m.seed, m.bytes)
}

// testRandomMessages draws a list of messages between random ranks. Each rank makes its calls in
// the order of the list, on random streams.
func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	const n, streamCount = 3, 3
	for round := range 3 {
		messages := make([]randomMessage, 60)
		for i := range messages {
			messages[i] = drawMessage(random, n, streamCount, i)
		}

		bw := newBufferWorld(t, h, n, 8<<20, options{checkCalls: round != 1})
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

	for i, m := range messages {
		var s driver.Stream
		var call driver.Call
		switch r.number {
		case m.src:
			s = streams[m.sendStream]
			call = message{peer: m.dst, tag: m.tag, offset: m.offset, bytes: m.bytes}.send(send)
		case m.dst:
			s = streams[m.recvStream]
			call = message{peer: m.src, tag: m.tag, offset: m.offset, bytes: m.bytes}.recv(recv)
		default:
			continue
		}

		call.Digest = uint64(i)
		r.must(r.queueCall(r.group, s, call))
	}

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
