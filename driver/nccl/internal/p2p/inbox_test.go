package p2p

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// These tests run the inbox of rank 1 without a GPU. The peer, rank 0, announces a message by a
// header in rank 1's mailbox (shared host memory), and then rank 1 posts a Recv. For example, this
// header announces message number 1 of 8 bytes, in slot 0 of the mailbox. Its data begins at byte
// 64 of segment 1, a part of the peer's memory that has 4 MiB and that rank 1 has mapped:
//
//	header{number: 1, bytes: 8, slot: 0, segment: 1, size: segmentBytes, offset: 64}

// The address and the size of the peer's only segment.
const (
	segmentAddress = 1 << 30
	segmentBytes   = 4 << 20
)

// messageBytes is the size of the message and of the Recv.
const messageBytes = 8

// TestPostRejectsInvalidHeaders posts a Recv after the peer has written a header that a correct
// peer would never write. post must return an error and not copy from memory that the header names.
func TestPostRejectsInvalidHeaders(t *testing.T) {
	for name, corrupt := range map[string]func(h *header){ // changes a valid header
		"wrong size of a mapped segment": func(h *header) {
			h.size = 1 << 40
			h.offset = 1 << 39
		},
		"segment size overflows": func(h *header) {
			h.segment = 2
			h.size = 1 << 63 // negative as an int64
		},
		"segment number overflows":           func(h *header) { h.segment = 1<<32 + 1 },
		"message extends beyond its segment": func(h *header) { h.offset = h.size - messageBytes/2 },
		"offset overflows":                   func(h *header) { h.offset = ^uint64(3) }, // 2^64 - 4
		"slot out of range":                  func(h *header) { h.slot = Slots },
		"message with bytes but no segment":  func(h *header) { h.segment = 0 },
		"message number is zero":             func(h *header) { h.number = 0 },
		"tag out of range":                   func(h *header) { h.tag = driver.MaxTag + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			in := newTestInbox(t)
			h := header{number: 1, bytes: messageBytes, segment: 1, size: segmentBytes}
			corrupt(&h)
			in.announceFromPeer(&h)
			checkPostFails(t, in)
		})
	}

	t.Run("more headers than slots", func(t *testing.T) {
		in := newTestInbox(t)
		in.mailbox.corruptPostedCount()
		checkPostFails(t, in)
	})
}

// checkPostFails checks that post returns an error for a Recv.
func checkPostFails(t *testing.T, in *inbox) {
	t.Helper()
	accepted, err := in.post(newRecv(messageBytes))
	if err == nil || accepted {
		t.Errorf("post = %v, %v; want false and an error", accepted, err)
	}
}

// corruptPostedCount sets the number of headers that rank 0 has written to an impossible number.
// The mailbox has room for Slots headers.
func (m *mailbox) corruptPostedCount() {
	const impossibleCount = 1 << 60
	spin.StoreRelease64(&m.headersFrom(0).postedCount, impossibleCount)
}

// TestPostAcceptsCompleteMessageImmediately posts a Recv after the header and the data of its
// message have arrived. post must accept the message and set up the copy of the data.
func TestPostAcceptsCompleteMessageImmediately(t *testing.T) {
	in := newTestInbox(t)
	const offset = 64
	in.announceFromPeer(&header{
		number: 1, bytes: messageBytes, segment: 1, size: segmentBytes, offset: offset,
	})
	e := newRecv(messageBytes)
	if accepted, err := in.post(e); err != nil || !accepted {
		t.Fatalf("post = %v, %v; want true, nil", accepted, err)
	}

	if got, want := e.descriptor.From, uint64(segmentAddress+offset); got != want {
		t.Errorf("post copies the message from %#x, want %#x", got, want)
	}
}

// TestUnreadMessagesAreLimitedToSlots corrupts the number of headers in a closed mailbox. The
// sender, rank 0, asks its outbox which of them were not read. The outbox must list at most Slots.
func TestUnreadMessagesAreLimitedToSlots(t *testing.T) {
	in := newTestInbox(t)
	const receiver = 1
	o := outbox{
		config: &driver.GroupConfig{Ranks: []int{0, receiver}, Rank: 0},
		peers:  []peerOutbox{{}, {mailbox: in.mailbox}}, // by rank
	}
	in.mailbox.corruptPostedCount()
	const isClosed = 1
	atomic.StoreUint32(&in.mailbox.wakeup().closed, isClosed)
	if got := len(o.unreadMessages(receiver)); got != Slots {
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

// newTestInbox returns the inbox of rank 1 in a group of two ranks. To the inbox, segment 1 of rank
// 0 appears to be mapped at segmentAddress.
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

// announceFromPeer makes a message with header h arrive from rank 0, after its data in slot 0.
func (in *inbox) announceFromPeer(h *header) {
	const peer = 0
	const slot = 0
	const hasArrived = 1
	atomic.StoreUint32(&in.mailbox.flags(peer).arrived[slot], hasArrived)
	in.mailbox.headersFrom(peer).post(h)
}

// newRecv returns a Recv of the given size from rank 0.
func newRecv(bytes int64) *End {
	call := &driver.Call{Operation: driver.Recv, Count: bytes, DataType: driver.Uint8}
	return &End{plan: &Plan{Call: call}, descriptor: &kernels.Message{}}
}
