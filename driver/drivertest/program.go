package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

type plannedMessage struct {
	src, dst, tag          int // src and dst are ranks
	bytes                  int64
	sendStream, recvStream int // indexes in the streams of src and dst
	contents               int // seed of the contents
}

// testRandomMessages draws a list of messages between random ranks. Each rank makes its calls in
// the order of the list, on random streams.
func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range 3 {
		const n, streamCount = 3, 3
		messages := make([]plannedMessage, 60)
		for i := range messages {
			p := plannedMessage{
				src: random.IntN(n), tag: random.IntN(3), sendStream: random.IntN(streamCount),
				recvStream: random.IntN(streamCount), contents: i,
			}
			p.dst = (p.src + 1 + random.IntN(n-1)) % n
			p.bytes = random.Int64N(2000)
			if random.IntN(6) == 0 {
				p.bytes = random.Int64N(60 << 10) // less than slotBytes
			}
			messages[i] = p
		}
		bw := newBufferWorld(t, h, n, 8<<20, options{checkCalls: round != 1})
		if !bw.tryOnEachRank(func(r *rank) { sendAndReceiveAll(bw, r, messages, streamCount) }) {
			t.Fatalf("messages of seed %d, round %d", seed, round)
		}
	}
}

// slotBytes is the size of the part of a buffer that each message uses.
const slotBytes = 64 << 10

func sendAndReceiveAll(bw *bufferWorld, r *rank, messages []plannedMessage, streamCount int) {
	streams := []driver.Stream{r.stream}
	for range streamCount - 1 {
		streams = append(streams, r.newStream())
	}
	for i, p := range messages {
		if p.src == r.number {
			data := input(bw.harness, driver.Uint8, p.contents, p.bytes)
			r.write(bw.send[r.number].addressAt(int64(i)*slotBytes), data)
		}
	}
	for i, p := range messages {
		offset := int64(i) * slotBytes
		var streamIndex int
		var call driver.Call
		switch r.number {
		case p.src:
			call = messageCall(driver.Send, p.dst, p.tag, bw.send[r.number], offset, p.bytes)
			streamIndex = p.sendStream
		case p.dst:
			call = messageCall(driver.Recv, p.src, p.tag, bw.recv[r.number], offset, p.bytes)
			streamIndex = p.recvStream
		default:
			continue
		}
		call.Digest = uint64(i)
		r.must(r.queueCall(r.group, streams[streamIndex], call))
	}
	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}
	for i, p := range messages {
		if p.dst == r.number {
			r.setStep("message %d from rank %d to rank %d", i, p.src, p.dst)
			data := input(bw.harness, driver.Uint8, p.contents, p.bytes)
			r.expectBytes(bw.recv[r.number].addressAt(int64(i)*slotBytes), data)
		}
	}
}
