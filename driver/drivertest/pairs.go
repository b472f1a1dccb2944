package drivertest

import (
	"testing"

	"symmem/driver"
)

var pairContracts = []contract{
	{"messages of every size arrive whole and in order", provePairSizes},
	{"ranks can send to each other at the same time on two streams", proveBothWays},
	{"messages go round a ring", proveRing},
}

// messages are sizes around those at which a backend may split a message.
var messages = []int64{1, 0, 48, 49, 8 << 10, 64 << 10, 64<<10 + 1, 5, 3<<20 + 7, 1}

// message makes the call that moves bytes between this rank and a peer.
func message(o driver.Operation, peer int, b buffer, bytes int64, path driver.Path) driver.Call {
	c := driver.Call{
		Operation: o, DataType: driver.Uint8, Count: bytes, Root: peer, Path: path,
		Digest: uint64(bytes) + 1,
	}
	if o == driver.Send {
		c.Send, c.SendWindow = b.at(0), b.window
	} else {
		c.Recv, c.RecvWindow = b.at(0), b.window
	}
	return c
}

func provePairSizes(t *testing.T, h Harness) {
	b := newBench(t, h, 2, 4<<20, options{check: true})
	for _, path := range h.Paths {
		for i, bytes := range messages {
			data := input(h, driver.Uint8, i, bytes)
			from := i % 2
			b.each(func(r *rank) {
				r.at("%d bytes from rank %d, path %v", bytes, from, path)
				if r.number == from {
					b.transmit(r, 1-from, data, path)
				} else {
					b.receive(r, from, data, path)
				}
			})
		}
	}
}

func (b *bench) transmit(r *rank, to int, data []byte, path driver.Path) {
	buf := b.send[r.number]
	r.write(buf.at(0), data)
	call := r.able(r.group, message(driver.Send, to, buf, int64(len(data)), path))
	r.ok(r.launch(r.group, r.stream, call))
}

func (b *bench) receive(r *rank, from int, data []byte, path driver.Path) {
	buf := b.recv[r.number]
	bytes := int64(len(data))
	r.ok(r.stream.Fill(buf.at(0), canary, bytes+margin))
	call := r.able(r.group, message(driver.Recv, from, buf, bytes, path))
	r.ok(r.launch(r.group, r.stream, call))
	r.expect(buf.at(0), data)
	r.expectAll(buf.at(bytes), canary, margin)
}

// crossing sends to one rank and receives from another at the same time.
func (b *bench) crossing(r *rank, to, from int, bytes int64) {
	n := len(b.ranks)
	other := r.newStream()
	send, recv := b.send[r.number], b.recv[r.number]
	for round := range 5 {
		r.at("round %d", round)
		data := input(b.harness, driver.Uint8, r.number+n*round, bytes)
		r.write(send.at(0), data)
		r.ok(r.queue(r.group, r.stream, message(driver.Send, to, send, bytes, driver.PathPlain)))
		r.ok(r.launch(r.group, other, message(driver.Recv, from, recv, bytes, driver.PathPlain)))
		r.ok(r.stream.Synchronize(b.ctx))
		r.expect(recv.at(0), input(b.harness, driver.Uint8, from+n*round, bytes))
	}
}

func proveBothWays(t *testing.T, h Harness) {
	for _, bytes := range []int64{4, 64<<10 + 1, 2<<20 + 1} {
		b := newBench(t, h, 2, 4<<20, options{check: true})
		b.each(func(r *rank) { b.crossing(r, 1-r.number, 1-r.number, bytes) })
	}
}

func proveRing(t *testing.T, h Harness) {
	const n = 4
	b := newBench(t, h, n, 1<<20, options{check: true})
	b.each(func(r *rank) { b.crossing(r, (r.number+1)%n, (r.number+n-1)%n, 200<<10) })
}
