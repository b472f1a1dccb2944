package drivertest

import (
	"fmt"
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
			err := b.each(func(r *rank) error {
				if r.number == from {
					return b.transmit(r, 1-from, data, path)
				}
				return b.receive(r, from, data, path)
			})
			if err != nil {
				t.Fatalf("%d bytes from rank %d, path %v: %v", bytes, from, path, err)
			}
		}
	}
}

func (b *bench) transmit(r *rank, to int, data []byte, path driver.Path) error {
	buf := b.send[r.number]
	if err := r.write(buf.at(0), data); err != nil {
		return err
	}
	call := r.able(r.group, message(driver.Send, to, buf, int64(len(data)), path))
	return r.launch(r.group, r.stream, call)
}

func (b *bench) receive(r *rank, from int, data []byte, path driver.Path) error {
	buf := b.recv[r.number]
	bytes := int64(len(data))
	if err := r.stream.Fill(buf.at(0), canary, bytes+margin); err != nil {
		return err
	}
	call := r.able(r.group, message(driver.Recv, from, buf, bytes, path))
	if err := r.launch(r.group, r.stream, call); err != nil {
		return err
	}
	if err := r.expect(buf.at(0), data); err != nil {
		return err
	}
	return r.expectAll(buf.at(bytes), canary, margin)
}

// crossing sends to one rank and receives from another at the same time.
func (b *bench) crossing(r *rank, to, from int, bytes int64) error {
	n := len(b.ranks)
	other, err := r.newStream()
	if err != nil {
		return err
	}
	send, recv := b.send[r.number], b.recv[r.number]
	for round := range 5 {
		data := input(b.harness, driver.Uint8, r.number+n*round, bytes)
		if err := r.write(send.at(0), data); err != nil {
			return err
		}
		if err := r.queue(r.group, r.stream,
			message(driver.Send, to, send, bytes, driver.PathPlain)); err != nil {
			return err
		}
		if err := r.launch(r.group, other,
			message(driver.Recv, from, recv, bytes, driver.PathPlain)); err != nil {
			return err
		}
		if err := r.stream.Synchronize(b.ctx); err != nil {
			return err
		}
		want := input(b.harness, driver.Uint8, from+n*round, bytes)
		if err := r.expect(recv.at(0), want); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

func proveBothWays(t *testing.T, h Harness) {
	for _, bytes := range []int64{4, 64<<10 + 1, 2<<20 + 1} {
		b := newBench(t, h, 2, 4<<20, options{check: true})
		must(t, b.each(func(r *rank) error {
			return b.crossing(r, 1-r.number, 1-r.number, bytes)
		}))
	}
}

func proveRing(t *testing.T, h Harness) {
	const n = 4
	b := newBench(t, h, n, 1<<20, options{check: true})
	must(t, b.each(func(r *rank) error {
		return b.crossing(r, (r.number+1)%n, (r.number+n-1)%n, 200<<10)
	}))
}
