package p2p

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// The address and size of the peer's staging memory in these tests. A Send copies the message
// into staging memory, from which the receiver copies it.
const (
	segmentAddress = 1 << 30
	segmentBytes   = 4 << 20
)

// TestPostRejectsInvalidHeaders posts a Recv after the peer has announced a message with a header
// that a correct peer would never write. post must return an error instead of copying from memory
// that the header names.
func TestPostRejectsInvalidHeaders(t *testing.T) {
	for name, corrupt := range map[string]func(h *header){ // h is valid before
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
		spin.StoreRelease64(&in.mailbox.headersFrom(0).postedCount, impossibleCount)
		if accepted, err := in.post(newRecv(8)); err == nil || accepted {
			t.Errorf("post = %v, %v; want false and an error", accepted, err)
		}
	})
}

// impossibleCount is a number of headers, far above the number of slots.
const impossibleCount = 1 << 60

// TestPostAcceptsCompleteMessageImmediately posts a Recv after the whole message has arrived. post
// must accept it and set up the copy from the peer's staging memory.
func TestPostAcceptsCompleteMessageImmediately(t *testing.T) {
	in := newTestInbox(t)
	in.announceFromPeer(&header{number: 1, bytes: 8, segment: 1, size: segmentBytes, offset: 64})
	e := newRecv(8)
	if accepted, err := in.post(e); err != nil || !accepted {
		t.Fatalf("post = %v, %v; want true, nil", accepted, err)
	}

	if got, want := e.descriptor.From, uint64(segmentAddress+64); got != want {
		t.Errorf("post copies the message from %#x, want %#x", got, want)
	}
}

// TestUnreadMessagesAreLimitedToSlots corrupts the number of posted headers in a closed mailbox.
// unreadMessages must not list more messages than there are slots.
func TestUnreadMessagesAreLimitedToSlots(t *testing.T) {
	in := newTestInbox(t)
	const peer = 1
	o := outbox{ // of rank 0
		config: &driver.GroupConfig{Ranks: []int{0, peer}, Rank: 0},
		peers:  []peerOutbox{{}, {mailbox: in.mailbox}},
	}
	spin.StoreRelease64(&in.mailbox.headersFrom(0).postedCount, impossibleCount)
	const isClosed = 1
	atomic.StoreUint32(&in.mailbox.wakeup().closed, isClosed)
	if got := len(o.unreadMessages(peer)); got != Slots {
		t.Errorf("unreadMessages returned %d messages, want %d", got, Slots)
	}
}

// TestRecvHasNoMessageOfAnotherSource announces a message of rank 3 that has no Recv. It may be the
// message of a Recv from any source, but not of a Recv from rank 0.
func TestRecvHasNoMessageOfAnotherSource(t *testing.T) {
	in := newTestInbox(t)
	const tag, source = 1, 3
	a := &announcement{source: source, header: header{tag: tag, number: 1}}
	if err := in.addAnnouncement(a); err != nil {
		t.Fatal(err)
	}

	for root, want := range map[int]bool{0: false, source: true, driver.AnySource: true} {
		e := newRecv(0)
		e.plan.Tag, e.plan.Root = tag, root
		if got := mayHaveMessage(in, e); got != want {
			t.Errorf("mayHaveMessage of a Recv from %d = %v, want %v", root, got, want)
		}
	}
}

// newTestInbox returns the inbox of rank 1 in a group of two ranks, without a GPU. Rank 0's staging
// memory appears to be mapped at segmentAddress.
func newTestInbox(t *testing.T) *inbox {
	t.Helper()
	const ranks = 2
	f, err := sys.Memfd("symmem-mailbox", mailboxBytes(ranks))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // the mapping keeps the memory
	mapping, err := sys.Map(f, 0, mailboxBytes(ranks))
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
		mailbox:        &mailbox{memory: mapping, ranks: ranks},
		announcements:  map[messageKey]*announcement{},
		awaitingHeader: map[messageKey]*End{},
		lastInSlot:     map[slotKey]*announcement{},
		peerSegments: map[slotKey]*peerSegment{
			{source: 0, number: 1}: {address: segmentAddress, bytes: segmentBytes},
		},
	}
}

// announceFromPeer makes a complete message with header h arrive from rank 0, in slot 0.
func (in *inbox) announceFromPeer(h *header) {
	const peer, slot = 0, 0
	atomic.StoreUint32(&in.mailbox.flags(peer).arrived[slot], 1)
	in.mailbox.headersFrom(peer).post(h)
}

// newRecv returns a Recv of the given size from rank 0.
func newRecv(bytes int64) *End {
	call := &driver.Call{Operation: driver.Recv, Count: bytes, DataType: driver.Uint8}
	return &End{plan: &Plan{Call: call}, descriptor: &kernels.Message{}}
}
