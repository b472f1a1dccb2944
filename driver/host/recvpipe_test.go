package host

import (
	"strings"
	"testing"
	"unsafe"

	"symmem/driver"
	"symmem/internal/spin"
)

// TestInvalidFrameFailsGroup checks that a Recv that reads an invalid frame returns an error and
// leaves its buffer unchanged.
func TestInvalidFrameFailsGroup(t *testing.T) {
	good := frameHeader{tag: 3, number: 1, total: 8}
	for name, corrupt := range map[string]func(h *frameHeader){
		"invalid tag":               func(h *frameHeader) { h.tag = 1 << 40 },
		"invalid number":            func(h *frameHeader) { h.number = 0 },
		"invalid size":              func(h *frameHeader) { h.total = 1 << 63 },
		"offset beyond the message": func(h *frameHeader) { h.offset = 9 },
		"missing first part":        func(h *frameHeader) { h.offset = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			pair := newRankPair(t)
			pair.connect()
			sender := pair.groups[0].(*communicator)
			f := &sender.pipe(0, 1).frames[1]
			f.header = good
			corrupt(&f.header)
			spin.StoreRelease64(&f.posted, 1)
			got := make([]byte, 16)
			err := pair.receive(1, driver.Call{Tag: 3, Count: 8}, got)
			if err == nil || !strings.Contains(err.Error(), "sent an invalid frame") {
				t.Errorf("got %v, want an error about an invalid frame", err)
			}

			if string(got) != strings.Repeat("\x00", 16) {
				t.Errorf("the buffer contains %v, want zeros", got)
			}
		})
	}
}

// receive runs a Recv from the other rank. call holds the Count and, if not 0, the Tag.
func (pair *rankPair) receive(rank int, call driver.Call, dst []byte) error {
	call.Operation, call.DataType, call.Root = driver.Recv, driver.Uint8, 1-rank
	call.Recv, call.Keep = uintptr(unsafe.Pointer(&dst[0])), dst
	return pair.run(rank, call)
}

// send runs a Send to the other rank. call holds the Count and, if not 0, the Tag.
func (pair *rankPair) send(rank int, call driver.Call, src []byte) error {
	call.Operation, call.DataType, call.Root = driver.Send, driver.Uint8, 1-rank
	call.Send, call.Keep = uintptr(unsafe.Pointer(&src[0])), src
	return pair.run(rank, call)
}

// run runs a call on a new stream and waits for it. It may be called in any goroutine.
func (pair *rankPair) run(rank int, call driver.Call) error {
	plan, err := driver.Prepare(pair.groups[rank], call)
	if err != nil {
		return err
	}

	s, err := pair.devices[rank].NewStream()
	if err != nil {
		return err
	}

	if err := pair.groups[rank].Launch(s, plan); err != nil {
		return err
	}

	return s.Synchronize(pair.ctx)
}
