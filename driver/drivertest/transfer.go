package drivertest

import (
	"testing"

	"symmem/driver"
)

var transferRequirements = []requirement{
	{"messages of every size arrive intact and in order", testTransferSizes},
	{"two ranks can send to each other at the same time on two streams", testBothDirections},
	{"messages travel around a ring", testRing},
}

// messageSizes lists sizes around those at which a backend may split a message.
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
		bw.sendAround(bytes, onTwoStreams)
	}
}

func testRing(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 4, 1<<20, options{checkCalls: true})
	bw.sendAround(200<<10, onTwoStreams)
}
