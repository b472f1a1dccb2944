package p2p

import (
	"math"
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Rank 1, whose inbox is tested, has mapped the only segment of GPU memory of rank 0, its peer. All
// values are arbitrary.
const (
	segmentAddress = 1 << 30
	segmentBytes   = 4 << 20
	messageBytes   = 8
)

func TestPostRejectsInvalidHeaders(t *testing.T) {
	for name, corrupt := range map[string]func(valid *header){
		"wrong size of a mapped segment": func(h *header) {
			h.segmentBytes = 1 << 40
			h.offset = h.segmentBytes / 2
		},
		"segment size overflows": func(h *header) {
			h.segment = 2
			h.segmentBytes = math.MaxInt64 + 1
		},
		"segment number overflows": func(h *header) { h.segment = 1 + 1<<32 }, // 1 as a uint32
		"message extends beyond its segment": func(h *header) {
			h.offset = h.segmentBytes - messageBytes/2
		},
		"offset overflows": func(h *header) {
			h.offset = math.MaxUint64 - messageBytes/2 + 1 // the message ends at 4 after overflow
		},
		"slot out of range":                 func(h *header) { h.slot = Slots },
		"message with bytes but no segment": func(h *header) { h.segment = 0 },
		"message number is zero":            func(h *header) { h.number = 0 },
		"tag out of range":                  func(h *header) { h.tag = driver.MaxTag + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			in := newTestInbox(t)
			h := header{number: 1, bytes: messageBytes, segment: 1, segmentBytes: segmentBytes}
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

func checkPostFails(t *testing.T, in *inbox) {
	t.Helper()
	accepted, err := in.post(newRecv(messageBytes))
	if err == nil || accepted {
		t.Errorf("post = %v, %v; want false and an error", accepted, err)
	}
}

func (m *mailbox) corruptPostedCount() {
	const peer = 0
	const impossibleCount = 1 << 60 // more than Slots
	spin.StoreRelease64(&m.headersFrom(peer).postedCount, impossibleCount)
}

func TestPostAcceptsCompleteMessageImmediately(t *testing.T) {
	in := newTestInbox(t)
	const offset = 64 // arbitrary
	in.announceFromPeer(&header{
		number: 1, bytes: messageBytes, segment: 1, segmentBytes: segmentBytes, offset: offset,
	})
	e := newRecv(messageBytes)
	if accepted, err := in.post(e); err != nil || !accepted {
		t.Fatalf("post = %v, %v; want true, nil", accepted, err)
	}

	if got, want := e.descriptor.From, uint64(segmentAddress+offset); got != want {
		t.Errorf("post copies the message from %#x, want %#x", got, want)
	}
}

// A sender lists at most Slots unread messages, even if a closed mailbox is corrupt.
func TestUnreadMessagesAreLimitedToSlots(t *testing.T) {
	in := newTestInbox(t)
	const receiver = 1
	o := outbox{
		config: &driver.GroupConfig{Ranks: []int{0, receiver}, Rank: 0},
		peers:  []peerOutbox{{}, {mailbox: in.mailbox}}, // by rank
	}
	in.mailbox.corruptPostedCount()
	atomic.StoreUint32(&in.mailbox.wakeup().closed, flagSet)
	if got := len(o.unreadMessages(receiver)); got != Slots {
		t.Errorf("unreadMessages returned %d messages, want %d", got, Slots)
	}
}

func TestRecvHasNoMessageOfAnotherSource(t *testing.T) {
	in := newTestInbox(t)
	const tag, source = 1, 3 // arbitrary
	a := &announcement{source: source, header: header{tag: tag, number: 1}}
	if err := in.addAnnouncement(a); err != nil {
		t.Fatal(err)
	}

	const otherSource = 0
	for root, want := range map[int]bool{
		source: true, otherSource: false, driver.AnySource: true,
	} {
		const bytes = 0
		e := newRecv(bytes)
		e.plan.Tag, e.plan.Root = tag, root
		if got := mayHaveMessage(in, e); got != want {
			t.Errorf("mayHaveMessage of a Recv from %d = %v, want %v", root, got, want)
		}
	}
}

// newTestInbox returns the inbox of rank 1. It needs no GPU, because the address of the peer's
// segment is not used.
func newTestInbox(t *testing.T) *inbox {
	t.Helper()
	const ranks = 2
	f, err := sys.Memfd("symmem-mailbox", mailboxBytes(ranks))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // the mapping keeps the memory
	const offset = 0
	mapping, err := sys.Map(f, offset, mailboxBytes(ranks))
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
		peerSegments: map[segmentKey]*peerSegment{
			{source: 0, number: 1}: {address: segmentAddress, bytes: segmentBytes},
		},
	}
}

// announceFromPeer posts a header from rank 0 and marks the data as arrived, in slot 0.
func (in *inbox) announceFromPeer(h *header) {
	const peer = 0
	const slot = 0
	atomic.StoreUint32(&in.mailbox.flags(peer).arrived[slot], flagSet)
	in.mailbox.headersFrom(peer).post(h)
}

// newRecv returns a Recv from rank 0.
func newRecv(bytes int64) *End {
	call := &driver.Call{Operation: driver.Recv, Count: bytes, DataType: driver.Uint8}
	return &End{plan: &Plan{Call: call}, descriptor: &kernels.Message{}}
}
