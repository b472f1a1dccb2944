package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

type plannedMessage struct {
	src, dst, tag          int
	bytes                  int64
	sendStream, recvStream int
	contents               int // seed of the contents
}

// testRandomMessages draws a list of messages. Each rank sends and receives its messages in this
// order, on random streams.
func testRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	draw := rand.New(rand.NewPCG(seed, 1))
	for round := range 3 {
		const n, streams = 3, 3
		program := make([]plannedMessage, 60)
		for i := range program {
			p := plannedMessage{
				src: draw.IntN(n), tag: draw.IntN(3), sendStream: draw.IntN(streams),
				recvStream: draw.IntN(streams), contents: i,
			}
			p.dst = (p.src + 1 + draw.IntN(n-1)) % n
			if p.bytes = draw.Int64N(2000); draw.IntN(6) == 0 {
				p.bytes = draw.Int64N(60 << 10)
			}
			program[i] = p
		}
		fx := newFixture(t, h, n, 8<<20, options{check: round != 1})
		if !fx.attempt(func(r *rank) { runProgram(fx, r, program, streams) }) {
			t.Fatalf("seed %d, round %d", seed, round)
		}
	}
}

// slotBytes is the size of the part of a buffer that each message uses.
const slotBytes = 64 << 10

func runProgram(fx *fixture, r *rank, program []plannedMessage, streams int) {
	choices := []driver.Stream{r.stream}
	for range streams - 1 {
		choices = append(choices, r.newStream())
	}
	for i, p := range program {
		if p.src == r.number {
			data := input(fx.harness, driver.Uint8, p.contents, p.bytes)
			r.write(fx.send[r.number].addr(int64(i)*slotBytes), data)
		}
	}
	for i, p := range program {
		offset := int64(i) * slotBytes
		var stream int
		var call driver.Call
		switch r.number {
		case p.src:
			call = messageCall(driver.Send, p.dst, p.tag, fx.send[r.number], offset, p.bytes)
			stream = p.sendStream
		case p.dst:
			call = messageCall(driver.Recv, p.src, p.tag, fx.recv[r.number], offset, p.bytes)
			stream = p.recvStream
		default:
			continue
		}
		call.Digest = uint64(i)
		r.must(r.queue(r.group, choices[stream], call))
	}
	for _, s := range choices {
		r.must(s.Synchronize(fx.ctx))
	}
	for i, p := range program {
		if p.dst == r.number {
			r.setStep("message %d from rank %d to rank %d", i, p.src, p.dst)
			data := input(fx.harness, driver.Uint8, p.contents, p.bytes)
			r.expect(fx.recv[r.number].addr(int64(i)*slotBytes), data)
		}
	}
}
