package drivertest

import (
	"testing"

	"symmem/driver"
)

var transferClauses = []clause{
	{"messages of every size arrive intact and in order", testTransferSizes},
	{"two ranks can send to each other at the same time on two streams", testBothDirections},
	{"messages travel around a ring", testRing},
}

// messageSizes lists sizes around those at which a backend may split a message.
var messageSizes = []int64{1, 0, 48, 49, 8 << 10, 64 << 10, 64<<10 + 1, 5, 3<<20 + 7, 1}

func testTransferSizes(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 4<<20, options{check: true})
	for i, bytes := range messageSizes {
		sender, data := i%2, input(h, driver.Uint8, i, bytes)
		fx.each(func(r *rank) {
			r.setStep("%d bytes from rank %d", bytes, sender)
			if r.number == sender {
				send := fx.send[sender]
				r.write(send.addr(0), data)
				r.must(r.launch(r.group, r.stream, messageCall(driver.Send, 1-sender, 0, send, 0, bytes)))
				return
			}
			recv := fx.recv[1-sender]
			r.must(r.stream.Fill(recv.addr(0), canary, bytes+margin))
			r.must(r.launch(r.group, r.stream, messageCall(driver.Recv, sender, 0, recv, 0, bytes)))
			r.expect(recv.addr(0), data)
			r.expectAll(recv.addr(bytes), canary, margin)
		})
	}
}

func testBothDirections(t *testing.T, h Harness) {
	for _, bytes := range []int64{4, 64<<10 + 1, 2<<20 + 1} {
		newFixture(t, h, 2, 4<<20, options{check: true}).swap(bytes, 2)
	}
}

func testRing(t *testing.T, h Harness) {
	newFixture(t, h, 4, 1<<20, options{check: true}).swap(200<<10, 2)
}
