package p2p

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// The peer's staging memory in these tests.
const (
	segmentAddress = 1 << 30
	segmentBytes   = 4 << 20
)

// TestPostRejectsInvalidHeaders posts a Recv after the peer has announced a message with a header
// that a correct peer would never write.
func TestPostRejectsInvalidHeaders(t *testing.T) {
	for name, corrupt := range map[string]func(h *header){
		"wrong size of a mapped segment":     func(h *header) { h.size, h.offset = 1<<40, 1<<39 },
		"segment size overflows":             func(h *header) { h.segment, h.size = 2, 1<<63 },
		"segment number overflows":           func(h *header) { h.segment = 1<<32 + 1 },
		"message extends beyond its segment": func(h *header) { h.offset = h.size - 4 },
		"offset overflows":                   func(h *header) { h.offset = ^uint64(3) },
		"slot out of range":                  func(h *header) { h.slot = Slots },
		"message with bytes but no segment":  func(h *header) { h.segment = 0 },
		"message number is zero":             func(h *header) { h.number = 0 },
		"tag out of range":                   func(h *header) { h.tag = driver.MaxTag + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			in := newTestInbox(t)
			h := header{number: 1, bytes: 8, segment: 1, size: segmentBytes}
			corrupt(&h)
			in.announceFromPeer(&h)
			if accepted, err := in.post(newRecv(8)); err == nil || accepted {
				t.Errorf("post = %v, %v; want false and an error", accepted, err)
			}
		})
	}
	t.Run("more headers than slots", func(t *testing.T) {
		in := newTestInbox(t)
		spin.StoreRelease64(&in.mailbox.headersFrom(0).postedCount, 1<<60)
		if accepted, err := in.post(newRecv(8)); err == nil || accepted {
			t.Errorf("post = %v, %v; want an error", accepted, err)
		}
	})
}

func TestPostAcceptsCompleteMessageImmediately(t *testing.T) {
	in := newTestInbox(t)
	in.announceFromPeer(&header{number: 1, bytes: 8, segment: 1, size: segmentBytes, offset: 64})
	e := newRecv(8)
	if accepted, err := in.post(e); err != nil || !accepted {
		t.Fatalf("post = %v, %v; want true", accepted, err)
	}
	if got, want := e.descriptor.From, uint64(segmentAddress+64); got != want {
		t.Errorf("post copies the message from %#x, want %#x", got, want)
	}
}

// TestUnreadMessagesAreLimitedToSlots corrupts the number of posted headers in a closed mailbox.
func TestUnreadMessagesAreLimitedToSlots(t *testing.T) {
	in := newTestInbox(t)
	o := outbox{
		config: &driver.GroupConfig{Ranks: []int{0, 1}},
		peers:  []peerOutbox{{}, {mailbox: in.mailbox}},
	}
	spin.StoreRelease64(&in.mailbox.headersFrom(0).postedCount, 1<<60)
	atomic.StoreUint32(&in.mailbox.wakeup().closed, 1)
	if got := len(o.unreadMessages(1)); got != Slots {
		t.Errorf("unreadMessages returned %d messages, want %d", got, Slots)
	}
}

// newTestInbox returns the inbox of rank 1 in a group of two ranks, without a GPU. Rank 0's staging
// memory appears to be mapped at segmentAddress.
func newTestInbox(t *testing.T) *inbox {
	t.Helper()
	f, err := sys.Memfd("symmem-mailbox", mailboxBytes(2))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := sys.Map(f, 0, mailboxBytes(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mapping.Close(); err != nil {
			t.Error(err)
		}
	})
	return &inbox{
		config:         &driver.GroupConfig{Ranks: []int{0, 1}, Rank: 1},
		mailbox:        &mailbox{memory: mapping, ranks: 2},
		announcements:  map[messageKey]*announcement{},
		awaitingHeader: map[messageKey]*End{},
		lastInSlot:     map[slotKey]*announcement{},
		peerSegments: map[slotKey]*peerSegment{
			{source: 0, number: 1}: {address: segmentAddress, bytes: segmentBytes},
		},
	}
}

// announceFromPeer makes a complete message with a header from rank 0 arrive.
func (in *inbox) announceFromPeer(h *header) {
	atomic.StoreUint32(&in.mailbox.flags(0).arrived[0], 1)
	in.mailbox.headersFrom(0).post(h)
}

func newRecv(bytes int64) *End {
	call := &driver.Call{Operation: driver.Recv, Count: bytes, DataType: driver.Uint8}
	return &End{plan: &Plan{Call: call}, descriptor: &kernels.Message{}}
}
