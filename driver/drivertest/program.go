package drivertest

import (
	"math/rand/v2"
	"testing"

	"symmem/driver"
)

// planned describes a message of a random program.
type planned struct {
	from, to, tag                int
	bytes                        int64
	sendStream, recvStream, fill int
}

// proveRandomMessages has all ranks call their ends of one list of messages, in list order, on
// randomly drawn streams.
func proveRandomMessages(t *testing.T, h Harness) {
	seed := rand.Uint64()
	draw := rand.New(rand.NewPCG(seed, 1))
	for round := range 3 {
		const n, streams = 3, 3
		program := make([]planned, 60)
		for i := range program {
			p := planned{
				from: draw.IntN(n), tag: draw.IntN(3), sendStream: draw.IntN(streams),
				recvStream: draw.IntN(streams), fill: i,
			}
			p.to = (p.from + 1 + draw.IntN(n-1)) % n
			if p.bytes = draw.Int64N(2000); draw.IntN(6) == 0 {
				p.bytes = draw.Int64N(60 << 10)
			}
			program[i] = p
		}
		b := newBench(t, h, n, 8<<20, options{check: round != 1})
		if !b.attempt(func(r *rank) { play(b, r, program, streams) }) {
			t.Fatalf("seed %d, round %d", seed, round)
		}
	}
}

// room is the space for one message of a random program in the buffers.
const room = 64 << 10

func play(b *bench, r *rank, program []planned, streams int) {
	lanes := []driver.Stream{r.stream}
	for range streams - 1 {
		lanes = append(lanes, r.newStream())
	}
	for i, p := range program {
		if p.from == r.number {
			data := input(b.harness, driver.Uint8, p.fill, p.bytes)
			r.write(b.send[r.number].at(int64(i)*room), data)
		}
	}
	for i, p := range program {
		at := int64(i) * room
		var lane int
		var call driver.Call
		switch r.number {
		case p.from:
			call = p2pCall(driver.Send, p.to, p.tag, b.send[r.number], at, p.bytes)
			lane = p.sendStream
		case p.to:
			call = p2pCall(driver.Recv, p.from, p.tag, b.recv[r.number], at, p.bytes)
			lane = p.recvStream
		default:
			continue
		}
		call.Digest = uint64(i)
		r.ok(r.queue(r.group, lanes[lane], call))
	}
	for _, s := range lanes {
		r.ok(s.Synchronize(b.ctx))
	}
	for i, p := range program {
		if p.to == r.number {
			r.at("message %d of %d to %d", i, p.from, p.to)
			data := input(b.harness, driver.Uint8, p.fill, p.bytes)
			r.expect(b.recv[r.number].at(int64(i)*room), data)
		}
	}
}
